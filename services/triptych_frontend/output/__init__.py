"""From output tokens to what the client is sent."""
