"""Models that generate nothing: embeddings, pooling, classify, score, rerank."""
