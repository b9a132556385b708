"""Weights that are stored in a few bits: their formats, and where checkpoints keep them."""
