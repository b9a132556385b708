"""Cross-attention of encoder-decoder models: each token of a sequence attends to all states that the encoder made of its audio."""
