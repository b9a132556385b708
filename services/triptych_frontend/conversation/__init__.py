"""A conversation between client and model: its turns, tools and reasoning; how answers are written, constrained and read."""
