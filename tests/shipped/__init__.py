"""Training programs that public repositories ship, run unmodified: tiny models, two ranks, three steps.

Their sources stay where they are: ``programs.toml`` names repository, commit and entry, ``VLMPATCH_SOURCES``
the folder of clones that ``make sources`` makes.
"""
