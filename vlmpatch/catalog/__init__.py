"""compat.toml -> typed, validated entries: records, reading, the compiled index, the environment's wishes."""
