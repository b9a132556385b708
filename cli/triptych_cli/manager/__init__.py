"""Several models on one machine: starts them, and lets them share the memory."""
