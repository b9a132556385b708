"""Loads language models and says what they are."""
