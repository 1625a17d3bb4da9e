"""Patches for ms-swift."""
