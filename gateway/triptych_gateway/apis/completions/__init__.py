"""POST /v1/completions: OpenAI's completions."""
