"""What a release needs, and which of it has been done on this commit."""
