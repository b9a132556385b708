"""KV cache events for routers of other projects: numbered batches, and their publication over ZeroMQ."""
