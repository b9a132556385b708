"""Talking to a served model in the terminal: `triptych chat` and `triptych run`."""
