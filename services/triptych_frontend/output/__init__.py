"""From output tokens to the client's deltas."""
