"""The sequences of a call in engines."""
