"""A small trainer of Qwen2-VL that depends on vlmpatch."""
