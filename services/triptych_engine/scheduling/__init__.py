"""The scheduler: requests, KV cache blocks, and what each step computes. Does not import torch."""
