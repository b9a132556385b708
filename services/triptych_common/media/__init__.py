"""What the frontend and the encoder must agree on about media."""
