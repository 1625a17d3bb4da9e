"""Training programs that public repositories ship, run unmodified: tiny models, two ranks, three steps.

Their sources stay where they are: ``programs.toml`` names repository, commit and entry, ``VLMPATCH_SOURCES``
the folder of clones that ``tests/e2e/test_launches_shipped.py`` reads too.
"""
