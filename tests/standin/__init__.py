"""A stand-in for MiniCPM-V: remote code and a fine-tune script of the same structure, written from scratch."""
