"""vLLM's gRPC contract, by which other routers (SMG) use engines."""
