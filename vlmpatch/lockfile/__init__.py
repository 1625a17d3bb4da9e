"""What vlmpatch applies on one stack, as a file: revisions of patches, the lock, how two of them differ."""
