"""What only a GPU can show: streams, NCCL, bf16 at size, memory. ``python -m tests.gpu``."""
