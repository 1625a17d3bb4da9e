"""Patches for transformers: models, Trainer, arguments."""
