"""Questions and answers about one image as one row of tokens, so that the image is computed once for all of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from .questions import Question

#: Possible system prompts. The first is the chat template's own, and the most frequent.
SYSTEM_PROMPTS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are a helpful assistant.",
    "Answer questions about pictures.",
)
_IGNORED = -100


@dataclass(frozen=True)
class Rows:
    """The tokens after the image tokens, for a batch.

    Attributes:
        input_ids, positions: int64 [batch, length]; positions count from the first token after the image.
        targets: int64 [batch, length], the token that should follow; _IGNORED outside answers.
        visible: bool [batch, length, length], the attention mask: which token sees which.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    visible: torch.Tensor


class DialogueBuilder:
    """Turns questions into rows, in the format of SmolLM2's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self._reply = self._encode("<|im_end|>\n<|im_start|>assistant\n")
        self._turn = self._encode("<|im_end|>\n<|im_start|>user\n")
        self._cache: dict[str, list[int]] = {}

    def opening(self, system_prompt: str) -> list[int]:
        """The tokens before the image."""
        return self._encode(f"<|im_start|>system\n{system_prompt}<|im_end|>\n<|im_start|>user\n")

    def build(self, asked: list[list[Question]], joined: bool) -> Rows:
        """One row per image.

        Args:
            joined: each question sees the earlier ones, as in a conversation of many turns; else each sees only the image.
        """
        rows = [self._row(questions, joined) for questions in asked]
        length = max(len(row[0]) for row in rows)
        ids, positions, targets, turns = (
            torch.tensor([part + [fill] * (length - len(part)) for part in column])
            for column, fill in zip(zip(*rows, strict=True), (0, 0, _IGNORED, -1), strict=True)
        )
        visible = torch.ones(length, length, dtype=torch.bool).tril() & (turns[:, :, None] == turns[:, None, :])
        return Rows(ids, positions, targets, visible)

    def _row(self, questions: list[Question], joined: bool) -> tuple[list[int], list[int], list[int], list[int]]:
        ids: list[int] = []
        positions: list[int] = []
        targets: list[int] = []
        turns: list[int] = []
        for turn, question in enumerate(questions):
            asked, answer = self._tokens(question.text) + self._reply, self._tokens(question.answer)
            block = asked + answer + (self._turn if joined else [])
            wanted = [_IGNORED] * (len(asked) - 1) + answer + self._turn[:1]
            positions += range(len(ids), len(ids) + len(block)) if joined else range(len(block))
            ids += block
            targets += wanted + [_IGNORED] * (len(block) - len(wanted))
            turns += [0 if joined else turn] * len(block)
        return ids, positions, targets, turns

    def _tokens(self, text: str) -> list[int]:
        if text not in self._cache:
            self._cache[text] = self._encode(text)
        return self._cache[text]


def choose(questions: list[Question], count: int, rng: random.Random) -> list[Question]:
    """A sample of the questions, with an equal share for every topic."""
    by_topic: dict[str, list[Question]] = {}
    for question in rng.sample(questions, len(questions)):
        by_topic.setdefault(question.topic, []).append(question)
    chosen: list[Question] = []
    while len(chosen) < count and by_topic:
        for topic in list(by_topic):
            chosen.append(by_topic[topic].pop())
            if not by_topic[topic]:
                del by_topic[topic]
    return rng.sample(chosen[:count], min(count, len(chosen)))
