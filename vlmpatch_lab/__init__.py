"""One lab for tests, matrix, bench and ``verify``: models, ranks, meters.

A package of its own, because a bare run must be bare: nothing here imports vlmpatch unless asked to.
"""
