"""The media rules that the frontend and the encoder must agree on."""
