"""Adapters (LoRA, arXiv 2106.09685) in PEFT's form: found in a directory, checked against the model, added to rows of a step."""
