"""The towers and the projector of a checkpoint, and the thread that runs them."""
