"""``doctor``: what is installed here, what would be patched, and what stands in the way."""
