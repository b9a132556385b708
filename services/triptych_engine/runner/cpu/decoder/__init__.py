"""Recognises what a model's decoder consists of, and computes it with few calls."""
