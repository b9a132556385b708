"""Access control, and the middleware around every request."""
