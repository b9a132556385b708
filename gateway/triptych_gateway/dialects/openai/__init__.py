"""OpenAI's chat, completions and transcriptions."""
