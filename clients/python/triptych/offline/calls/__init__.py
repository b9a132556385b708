"""Calls of `LLM` to a frontend: the loop, the window of requests in flight, progress."""
