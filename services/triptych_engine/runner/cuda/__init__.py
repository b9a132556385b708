"""What runs on NVIDIA GPUs only."""
