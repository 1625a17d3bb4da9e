"""The layers of which a function is taken."""
