"""The encoder: pictures, sounds and video in, embeddings out, with a cache that outlives the request."""
