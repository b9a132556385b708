"""Rules that depend on the tokens of the output: constraints and bad token sequences."""
