"""Trainings that were stopped and resumed, engine by engine; right is to end as the one that was not.

``table.py`` runs them and keeps what they did; ``tests/lab/resumed.py`` is what a cell does.
"""
