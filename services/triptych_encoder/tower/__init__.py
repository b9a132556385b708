"""The towers and projector of a checkpoint, and the thread that runs them."""
