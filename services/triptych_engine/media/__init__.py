"""Media in the engine: embeddings, which requests need them, and how they are fetched."""
