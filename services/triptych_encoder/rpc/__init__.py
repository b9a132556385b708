"""The gRPC interface of the encoder."""
