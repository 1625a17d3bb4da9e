"""The life of a patch."""
