"""Is the bug present here?  Versions, then a look at the code itself."""
