"""A load on an OpenAI-compatible server: requests, the client, and what it saw. For `triptych bench` and benchmarks/."""
