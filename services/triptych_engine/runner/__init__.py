"""The model on its device: loading, attention over the paged cache, sampling. Knows nothing of the scheduler."""
