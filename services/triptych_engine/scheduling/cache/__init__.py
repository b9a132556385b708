"""The KV cache as the scheduler keeps it: blocks, recurrent states, windows, and which of them a prompt finds."""
