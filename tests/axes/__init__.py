"""Trainings along axes that a matrix of engines does not have: precision, adapters, objectives, memory, data.

``rows.py`` is the table as data, ``training.py`` trains a cell of it, ``table.py`` runs many and keeps what
they did.
"""
