"""Counting the tokens of an answer while it is made, for an answer that ends without usage."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.v1 import generation_pb2

#: Characters of an answer per token: OpenAI's rule of thumb.
_CHARACTERS_PER_TOKEN = 4


class Tally:
    """Tokens of the calls of one request, as far as their deltas tell.

    Args:
        prompts: expected tokens of each call's prompt. The call's first delta corrects its number.
    """

    def __init__(self, prompts: Iterable[int]) -> None:
        self._prompts = list(prompts)
        #: 0 until the first delta.
        self.num_output_tokens = 0

    def add(self, call: int, delta: generation_pb2.ChoiceDelta) -> None:
        """Count a delta of the call with this index. It has at least one token, and one that waited for its client has many."""
        if delta.HasField("prompt_tokens"):
            self._prompts[call] = delta.prompt_tokens
        # A delta is of one kind.
        num_characters = len(delta.text) + len(delta.reasoning) + len(delta.tool_call.arguments)
        self.num_output_tokens += max(1, len(delta.token_ids), num_characters // _CHARACTERS_PER_TOKEN)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompts and of the answer."""
        return sum(self._prompts) + self.num_output_tokens
