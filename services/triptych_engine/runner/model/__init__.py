"""Loads language models and determines their properties."""
