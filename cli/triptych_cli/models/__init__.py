"""Getting models onto this machine."""
