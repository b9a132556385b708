"""Code for NVIDIA GPUs."""
