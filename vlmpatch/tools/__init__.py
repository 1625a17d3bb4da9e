"""What a person calls: the command line and its views. Never imported by a training process."""
