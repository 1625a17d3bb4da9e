"""When does a target exist?  Post-import hooks and remote code."""
