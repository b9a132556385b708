"""Choosing tokens with CPU kernels (cpu/csrc/sampling/)."""
