"""Generating for one request: its calls, their choices, and the answer that is sent, whole or streamed."""
