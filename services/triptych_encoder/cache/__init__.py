"""The embedding cache, the store that encoders share, and waiting for embeddings."""
