"""Makers of what few programs want: ``python -m tests.shipped.models.NAME MADE FOLDER`` inside a stack.

``MADE`` holds what all programs have. A program that is told ``{NAME}`` is given the folder; a change of a
maker concerns no other program.
"""
