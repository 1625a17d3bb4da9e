"""What two or more patches use, whatever they fix."""
