"""The REST routes, one module per family."""
