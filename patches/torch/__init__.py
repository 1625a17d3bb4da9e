"""Patches for torch itself."""
