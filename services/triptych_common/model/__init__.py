"""Model names, local checkpoints, and the content of their files. Needs no torch."""
