"""Patches for accelerate."""
