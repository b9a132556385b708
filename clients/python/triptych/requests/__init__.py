"""Requests from Python's own values."""
