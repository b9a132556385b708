"""Media in the engine: embeddings, who needs them, where they come from."""
