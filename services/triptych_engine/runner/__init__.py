"""The model on its device: loading, attention over the paged cache, sampling. Of the scheduler it uses only data types."""
