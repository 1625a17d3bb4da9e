"""Patches of acme-vl, for vlmpatch."""
