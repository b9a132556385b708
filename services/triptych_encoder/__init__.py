"""The encoder: turns images, audio and video into embeddings, with a cache that outlives the request."""
