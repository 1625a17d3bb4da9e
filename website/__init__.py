"""The documentation site, made from the repository's own files: ``make site``."""
