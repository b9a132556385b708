"""Embeddings, scores, classes: requests and answers."""
