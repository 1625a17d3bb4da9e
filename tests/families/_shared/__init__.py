"""What two or more families use."""
