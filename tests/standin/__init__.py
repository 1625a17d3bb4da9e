"""A stand-in for MiniCPM-V, written from scratch: remote code and a fine-tune script of its structure."""
