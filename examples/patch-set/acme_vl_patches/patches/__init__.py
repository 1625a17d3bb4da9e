"""One folder a project, one file a patch."""
