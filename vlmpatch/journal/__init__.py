"""What was changed, by whom, in which order: the only writer to foreign objects, and the only undoer."""
