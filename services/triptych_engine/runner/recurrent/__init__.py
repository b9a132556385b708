"""Layers that keep a state per sequence in place of keys and values: gated delta rules, Mamba-2, short convolutions."""
