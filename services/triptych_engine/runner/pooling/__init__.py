"""Pooling models: hidden states become vectors, labels or scores."""
