"""A stand-in for a team's own model repository, with the two bugs that the set is about."""

__version__ = "1.1.0"
