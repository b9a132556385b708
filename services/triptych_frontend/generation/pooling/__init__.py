"""Embed, Score and Classify: from inputs to token ids, and from the engines to vectors."""
