"""Offline inference: `LLM`, with the methods and results of vLLM's class of that name. Needs the extra `triptych[local]`."""
