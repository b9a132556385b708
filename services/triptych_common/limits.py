"""Bounds of requests that the gateway and the frontend both check: the gateway in its clients' words, the frontend for gRPC."""

from __future__ import annotations

#: Characters of a tool's name.
MAX_TOOL_NAME_CHARS = 128
MAX_STOP_STRINGS = 16
#: Characters of a stop string. Each choice may hold back this much text.
MAX_STOP_CHARS = 1024
MAX_CHOICES = 128
#: Characters of an affinity key. Routers look at it once for each engine.
MAX_AFFINITY_KEY_CHARS = 512
#: Alternatives per token.
MAX_LOGPROBS = 20
#: Sequences of token ids that are never generated. A word has several spellings in tokens.
MAX_BAD_SEQUENCES = 1024
MAX_BAD_WORDS = MAX_BAD_SEQUENCES // 4
