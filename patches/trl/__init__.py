"""Patches for TRL's trainers."""
