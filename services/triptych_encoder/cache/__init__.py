"""The embedding cache, its shared second tier, and who waits for what."""
