"""Writes the files of output of a batch from its journal."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych_common.batch.journal import encoded, new_line_id

from triptych_gateway.apis.batches.checking import checked_lines
from triptych_gateway.apis.batches.schema import BatchUsage, CachedTokens, ReasoningTokens
from triptych_gateway.stores.disk import Arrival

#: The end of a batch -> code and message of what it did not answer.
UNANSWERED = {
    "expired": ("batch_expired", "the request was not answered within the completion window"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before the request was answered"),
    "failed": ("batch_failed", "the batch failed before the request was answered"),
}


@dataclass
class Written:
    """What was written."""

    num_completed: int = 0
    num_failed: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("input", "cached", "output", "reasoning"), 0))

    @property
    def usage(self) -> BatchUsage:
        """Tokens of all answers."""
        tokens = self.tokens
        return BatchUsage(
            input_tokens=tokens["input"],
            input_tokens_details=CachedTokens(cached_tokens=tokens["cached"]),
            output_tokens=tokens["output"],
            output_tokens_details=ReasoningTokens(reasoning_tokens=tokens["reasoning"]),
            total_tokens=tokens["input"] + tokens["output"],
        )

    def count(self, body: Any) -> None:
        """Add the usage of an answer, which each route tells in its own words."""
        usage = body.get("usage") if isinstance(body, dict) else None
        if not isinstance(usage, dict):
            return
        self.tokens["input"] += usage.get("prompt_tokens") or usage.get("input_tokens") or 0
        self.tokens["output"] += usage.get("completion_tokens") or usage.get("output_tokens") or 0
        for kind, name in (("prompt", "cached"), ("input", "cached"), ("completion", "reasoning"), ("output", "reasoning")):
            details = usage.get(f"{kind}_tokens_details")
            self.tokens[name] += (details.get(f"{name}_tokens") or 0) if isinstance(details, dict) else 0


def write_output(journal: Path, source: Path | None, done: Container[str], end: str, output: Arrival, errors: Arrival) -> Written:
    """Divide the answers, and say of each request without one why it has none. Not for the event loop. Raises OSError.

    Args:
        source: the input; None if its lines were not checked.
        done: custom_ids of the requests that were answered.
        end: the status that the batch will have.
        output: gets the answers with a status below 400.
        errors: gets all else.
    """
    written = Written()
    with journal.open("rb") as file:
        for text in file:
            if not text.strip():
                continue
            response = json.loads(text)["response"]
            if response["status_code"] < 400:
                written.num_completed += 1
                output.append(text)
            else:
                written.num_failed += 1
                errors.append(text)
            written.count(response["body"])
    if end not in UNANSWERED or source is None:
        return written
    code, message = UNANSWERED[end]
    for line in checked_lines(source):
        if line.custom_id not in done:
            written.num_failed += 1
            error = {"code": code, "message": message}
            errors.append(encoded({"id": new_line_id(), "custom_id": line.custom_id, "response": None, "error": error}))
    return written
