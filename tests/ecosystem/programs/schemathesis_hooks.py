"""Hooks of Schemathesis: most requests name the served model and have a plausible input, so that they are answered.

Bodies that are made from the schemas alone are nearly all refused, and so their answers would never be checked.
"""

from __future__ import annotations

import os
import random
from typing import Any

import schemathesis

MODEL = os.environ["TRIPTYCH_MODEL"]
HI = {"messages": [{"role": "user", "content": "Hi"}]}
#: Path -> the fields that a request needs.
PLAUSIBLE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**HI, "max_tokens": 4},
    "/v1/chat/completions/render": HI,
    "/v1/completions": {"prompt": "Once", "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/responses/compact": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {**HI, "max_tokens": 4},
    "/v1/messages/count_tokens": HI,
    "/api/chat": {**HI, "options": {"num_predict": 4}},
    "/api/generate": {"prompt": "Once", "options": {"num_predict": 4}},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}
#: Fields that make a request long. Other tests send them.
COSTLY = {"n", "best_of", "use_beam_search"}


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """The body as it was made, or, three times out of four, a plausible one with some fields of it."""
    needed = PLAUSIBLE.get(context.operation.path)
    # The same body must always become the same one, so that a failure can be repeated.
    chance = random.Random(repr(body))
    if needed is None or not isinstance(body, dict) or chance.random() < 0.25:
        return body
    share = chance.random() * 0.4
    kept = {name: value for name, value in body.items() if name not in COSTLY and chance.random() < share}
    streamed = {"stream": True} if "max_tokens" in needed or "max_output_tokens" in needed else {}
    return kept | needed | {"model": MODEL} | (streamed if chance.random() < 0.3 else {})
