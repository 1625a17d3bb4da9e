"""Patches for axolotl."""
