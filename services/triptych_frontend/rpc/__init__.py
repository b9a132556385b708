"""The gRPC interface of the frontend."""
