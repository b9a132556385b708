"""What the output of a sequence must look like: checks of constraints, and their compilation for llguidance."""
