"""From messages to prompt tokens."""
