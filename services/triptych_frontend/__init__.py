"""The frontend: chat templates, tokenization, orchestration of the engine, text back. Holds no torch."""
