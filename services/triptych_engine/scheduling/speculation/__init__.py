"""Tokens that are guessed, and verified in one step: several tokens per step where the guesses are right."""
