"""Makers of what few programs want: ``python -m tests.shipped.models.NAME MADE FOLDER`` inside a stack.

``MADE`` holds what all programs have; ``REPOSITORY`` in the environment is where a program's repository lies.
A program that is told ``{NAME}`` is given the folder; a change of a maker concerns no other program.
"""
