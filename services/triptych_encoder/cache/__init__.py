"""The embedding cache, the store that encoders share, and the wait for embeddings."""
