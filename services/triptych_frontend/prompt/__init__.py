"""From requests to prompt tokens."""
