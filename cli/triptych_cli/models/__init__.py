"""Fetching and converting models."""
