"""What a shell script would launch, read and never run."""
