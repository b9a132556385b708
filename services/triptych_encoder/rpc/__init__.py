"""The gRPC edge of the encoder."""
