"""Choosing tokens with tensor operations: on a GPU, and on CPUs without kernels."""
