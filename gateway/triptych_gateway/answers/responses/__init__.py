"""Keeping responses: what a request continues, what is stored of it, and work in the background."""
