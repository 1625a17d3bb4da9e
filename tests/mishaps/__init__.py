"""Runs that go wrong and go on: what goes wrong, what the script then does, and what comes of it.

``cell.py`` is the table, ``ranks.py`` trains a cell of it, ``run.py`` many of them in one process of a stack.
``walk.py`` draws scripts at random, ``walker.py`` does what they say, ``walks.py`` judges what came of it.
"""
