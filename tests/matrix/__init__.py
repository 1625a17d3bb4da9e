"""Every gate of compat.toml, run on real stacks, bare and patched: ``make matrix``."""
