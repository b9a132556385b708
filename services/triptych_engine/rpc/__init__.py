"""The gRPC edge of the engine."""
