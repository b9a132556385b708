"""The frontend: chat templates, tokenization, requests to the engine, detokenization. Contains no torch."""
