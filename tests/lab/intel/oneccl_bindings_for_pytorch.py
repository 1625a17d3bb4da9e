"""Empty: DeepSpeed 0.12 imports this name before it runs on a CPU; its collectives go over gloo here."""
