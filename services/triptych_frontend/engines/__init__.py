"""The frontend's side of the engines."""
