"""Patches for MiniCPM-V: its fine-tune script and its remote code."""
