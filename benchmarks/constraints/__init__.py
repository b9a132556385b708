"""What constraints cost."""
