"""Patches for peft."""
