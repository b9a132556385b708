"""The gRPC edge of the frontend."""
