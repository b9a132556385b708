"""The frontend's side of the encoders."""
