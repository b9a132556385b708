"""Blocks of the KV cache outside of it: in the host's memory and on disk."""
