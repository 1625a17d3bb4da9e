"""A launch line, a script, a configuration -> what is known to go wrong with it. Nothing of it is run."""
