"""What looks on inside a training: its first steps, and the versions of its ranks."""
