"""Model names, local checkpoints, and what their files say. Needs no torch."""
