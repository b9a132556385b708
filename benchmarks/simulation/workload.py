"""Conversations, the same for a real run and a simulated one: prompts as token ids, arrivals and pauses, all from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.simulation.engine import FIRST_TOKEN, VOCABULARY


@dataclass(frozen=True)
class Turn:
    """One message of a user.

    Attributes:
        token_ids: of the message.
        max_tokens: of the answer, which has exactly so many.
        pause_s: from the end of the last answer to this message.
    """

    token_ids: list[int]
    max_tokens: int
    pause_s: float


@dataclass(frozen=True)
class Conversation:
    """One user's turns. Each prompt is everything that was said before, and the message."""

    number: int
    start_s: float
    system: list[int]
    turns: list[Turn]


@dataclass(frozen=True)
class Workload:
    """An open loop: conversations begin at random, whatever the servers do.

    Attributes:
        conversations_per_s: mean rate of their begins, which are Poisson arrivals.
        burst: begins come in bursts of so many at the same moment; the mean rate stays.
        num_systems, system_tokens: system prompts that conversations share, the n-th used in proportion to 1 / n.
        turns, message_tokens, first_tokens, answer_tokens: smallest and largest, drawn evenly; `first_tokens` is of first messages.
        pause_s: mean of the exponential time from an answer to the next message.
    """

    name: str
    conversations_per_s: float
    duration_s: float
    num_systems: int
    system_tokens: tuple[int, int]
    turns: tuple[int, int]
    first_tokens: tuple[int, int]
    message_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    pause_s: float
    burst: int = 1

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """All that begin within the duration, in the order of their begins."""
        rng = random.Random(f"{self.name} {seed}")
        systems = [_tokens(rng, self.system_tokens) for _ in range(self.num_systems)]
        weights = [1 / (1 + number) for number in range(self.num_systems)]
        start_s, number = rng.expovariate(self.conversations_per_s / self.burst), 0
        while start_s < self.duration_s:
            for _ in range(self.burst):
                system = rng.choices(systems, weights)[0] if systems else []
                turns = [self._turn(rng, index) for index in range(rng.randint(*self.turns))]
                yield Conversation(number, start_s, system, turns)
                number += 1
            start_s += rng.expovariate(self.conversations_per_s / self.burst)

    def _turn(self, rng: random.Random, index: int) -> Turn:
        token_ids = _tokens(rng, self.message_tokens if index else self.first_tokens)
        return Turn(token_ids, rng.randint(*self.answer_tokens), rng.expovariate(1 / self.pause_s) if index else 0.0)


def _tokens(rng: random.Random, limits: tuple[int, int]) -> list[int]:
    return rng.choices(range(FIRST_TOKEN, VOCABULARY), k=rng.randint(*limits))


#: For two engines. The first is for fitting, the others are for checking.
CHATS = Workload("chats", 2.0, 50.0, 6, (150, 400), (1, 4), (20, 120), (20, 80), (16, 48), 2.0)
AGENTS = Workload("agents", 0.6, 50.0, 3, (700, 1100), (4, 9), (30, 100), (40, 200), (8, 24), 0.5)
DOCUMENTS = Workload("documents", 1.0, 60.0, 0, (0, 0), (1, 2), (300, 900), (20, 60), (24, 64), 2.0, burst=6)
FITTED, CHECKED = CHATS, (AGENTS, DOCUMENTS)
WORKLOADS = {one.name: one for one in (CHATS, AGENTS, DOCUMENTS)}
