"""Offline inference: `triptych.LLM`."""
