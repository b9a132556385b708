"""The scheduler: requests, KV cache blocks, and what each step computes. Needs no torch."""
