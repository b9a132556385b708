"""Kernels and modules for CPUs."""
