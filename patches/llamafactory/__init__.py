"""Patches for LLaMA-Factory."""
