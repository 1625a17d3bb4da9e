"""Empty: DeepSpeed 0.12 looks for this name before it runs on a CPU, and uses nothing of it."""
