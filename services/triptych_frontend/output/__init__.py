"""From output tokens to text."""
