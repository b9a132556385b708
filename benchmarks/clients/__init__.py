"""Benchmarks of the clients."""
