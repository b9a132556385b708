"""Paths of OpenAI's, Anthropic's and Ollama's APIs that are not served here, and what is nearest to them."""

from __future__ import annotations

_NO_STATE = "POST /v1/responses keeps a conversation, with previous_response_id"
_TEXT_ONLY = "this server makes text"
_MANAGED = "models are fetched and served by `triptych serve`, and loaded by POST /admin/models/load"
#: The beginning of a path -> what is nearest. The first that fits counts.
_NEAREST: tuple[tuple[str, str], ...] = (
    ("/v1/messages/batches", "POST /v1/batches, in OpenAI's format"),
    ("/v1/assistants", _NO_STATE),
    ("/v1/threads", _NO_STATE),
    ("/v1/conversations", _NO_STATE),
    ("/v1/vector_stores", "POST /v1/embeddings makes the vectors"),
    ("/v1/moderations", "POST /classify, with a model that classifies"),
    ("/v1/realtime", "GET /v1/responses as a WebSocket"),
    ("/v1/engines", "GET /v1/models"),
    ("/v1/edits", "POST /v1/chat/completions"),
    ("/v1/complete", "POST /v1/messages"),
    ("/v1/audio/speech", _TEXT_ONLY),
    ("/v1/images", f"{_TEXT_ONLY}; pictures are read by POST /v1/chat/completions"),
    ("/v1/videos", f"{_TEXT_ONLY}; videos are read by POST /v1/chat/completions"),
    ("/v1/fine_tuning", "models are served as they are"),
    ("/v1/containers", "no code is run here; a client runs its own tools"),
    ("/v1/evals", "the playground and `triptych batch` answer prompts"),
    ("/v1/organization", "GET /metrics has the usage"),
    ("/v1/systemone", "POST /classify, with a model that classifies"),
    # Ollama's files.
    *((f"/api/{name}", _MANAGED) for name in ("pull", "push", "create", "copy", "delete", "blobs")),
    # Clients whose base URL lacks the version.
    ("/chat/completions", "POST /v1/chat/completions: the base URL ends with /v1"),
    ("/completions", "POST /v1/completions: the base URL ends with /v1"),
    ("/responses", "POST /v1/responses: the base URL ends with /v1"),
    ("/embeddings", "POST /v1/embeddings: the base URL ends with /v1"),
    ("/messages", "POST /v1/messages: the base URL has no path"),
    ("/models", "GET /v1/models: the base URL ends with /v1"),
    ("/v1/v1", "the base URL has /v1 twice"),
)


def explanation(path: str) -> str:
    """What a client reads that asks for a path without a route."""
    nearest = next((text for start, text in _NEAREST if path == start or path.startswith(f"{start}/")), None)
    return "no such path" if nearest is None else f"not served here; nearest: {nearest}"
