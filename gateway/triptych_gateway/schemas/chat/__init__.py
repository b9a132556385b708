"""POST /v1/chat/completions: request and answers."""
