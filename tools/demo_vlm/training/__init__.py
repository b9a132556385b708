"""Training of the demo model: the vision tower, then the projector."""
