"""One file a bug. CONTRIBUTING.md says what such a file holds."""
