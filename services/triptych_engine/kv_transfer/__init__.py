"""Blocks of the KV cache from one engine to another."""
