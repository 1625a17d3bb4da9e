"""Patches for DeepSpeed's engines: ZeRO-1, 2 and 3."""
