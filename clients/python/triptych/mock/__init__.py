"""Contracts of the mock server."""
