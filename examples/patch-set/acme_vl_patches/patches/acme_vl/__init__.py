"""Patches for acme_vl."""
