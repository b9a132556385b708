"""Ollama's API: /api/chat, /api/generate, /api/embed, and what its clients ask about models."""
