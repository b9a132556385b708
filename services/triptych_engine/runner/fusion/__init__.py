"""Recognises what a model's decoder consists of, and computes it with few calls, on any device that implements FusedKernels."""
