"""Draft tokens change no text: the tokens, their log probabilities and their ends are those without them, whatever is guessed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.builders.tokenizer import IM_END_ID, byte_level_tokenizer, save_tokenizer
from support.drivers.engine import EngineDriver, Generated
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.scheduling.request import Constraint, Request

PROMPT = [5, 9, 40, 77, 12, 5, 9, 40]
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["yes", "no"]}}, "required": ["a", "b"]}'
_END = frozenset([IM_END_ID])
#: Everything that changes how a token is chosen, or when an output ends.
KINDS: dict[str, dict[str, object]] = {
    "greedy": {},
    "log probabilities": {"logprobs": 3},
    "sampled": {"temperature": 1.1, "seed": 7},
    "cut": {"temperature": 1.3, "seed": 8, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "logprobs": 0},
    "penalties": {"temperature": 0.8, "seed": 9, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.5},
    "greedy penalties": {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
    "bias": {"logit_bias": {11: 4.0, 12: -3.0}, "bad_token_ids": (40, 77)},
    "bad sequences": {"bad_token_sequences": ((9, 40), (5, 9, 41), (300, 301))},
    "schema": {
        "constraint": Constraint(ConstraintSpec("json_schema", SCHEMA)),
        "stop_token_ids": _END,
        "temperature": 1.0,
        "seed": 3,
    },
    "choice": {"constraint": Constraint(ConstraintSpec("choice", '["yes indeed", "no"]')), "stop_token_ids": _END, "logprobs": 1},
    "nothing left": {
        "temperature": 1.0,
        "seed": 5,
        "allowed_token_ids": (5, 6),
        "bad_token_sequences": ((5, 5, 5), (5, 5, 6), (5, 6, 5), (5, 6, 6), (6, 5, 5), (6, 5, 6), (6, 6, 5), (6, 6, 6)),
    },
    "not before": {"min_tokens": 9, "stop_token_ids": frozenset(range(0, 520, 3))},
}


class Oracle:
    """Knows what comes, and lies now and then."""

    def __init__(self, known: dict[str, list[int]], honesty: float) -> None:
        self._known, self._honesty = known, honesty
        self._random = random.Random(honesty)
        self.num_draft_tokens = self.num_accepted = 0

    def begin_step(self, num_decoding: int, *, had_prompts: bool, encoding: bool) -> bool:
        return True

    def propose(self, request: Request, most: int) -> list[int]:
        if request.num_unknown_tokens:
            return []
        rest = self._known[request.request_id][request.num_output_tokens :]
        number = self._random.randrange(0, 9)
        # Guesses go on behind the end of what is known, too.
        guesses = [*rest, *PROMPT][: min(most, number)]
        return [token if self._random.random() < self._honesty else self._random.randrange(520) for token in guesses]

    def observe(self, request: Request, num_draft_tokens: int, num_accepted: int) -> None:
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted += num_accepted


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> EngineDriver:
    """A tiny random model whose logits are more than the tokenizer's tokens."""
    path: Path = tmp_path_factory.mktemp("tiny")
    save_random_model(path, a_tiny_llama_config(vocab_size=520))
    save_tokenizer(path, byte_level_tokenizer())
    return EngineDriver(path)


def requests() -> list[Request]:
    return [a_request(name, [*PROMPT, number], **{"max_tokens": 40, **kind}) for number, (name, kind) in enumerate(KINDS.items())]


def told(generated: Generated) -> tuple[object, ...]:
    last = generated.last
    assert last is not None
    entries = [
        (entry.token_id, entry.rank, entry.top_token_ids, pytest.approx(entry.logprob, abs=1e-4)) for entry in generated.logprobs
    ]
    return generated.token_ids, entries, last.finish_reason, last.stop_token_id, last.usage, str(last.error)


@pytest.fixture(scope="module")
def plain(driver: EngineDriver) -> dict[str, Generated]:
    return {request.request_id: driver.run(driver.scheduler(), [request])[request.request_id] for request in requests()}


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("honesty", [0.0, 0.6, 0.9, 1.0])
def test_the_text_is_the_same(driver: EngineDriver, plain: dict[str, Generated], honesty: float, async_scheduling: bool) -> None:
    oracle = Oracle({name: one.token_ids for name, one in plain.items()}, honesty)
    together = driver.run(driver.scheduler(drafter=oracle), requests(), async_scheduling=async_scheduling)
    for name, one in plain.items():
        assert told(together[name]) == told(one), name
    if not async_scheduling:
        assert oracle.num_draft_tokens > 200
        assert oracle.num_accepted >= honesty**2 * 0.5 * oracle.num_draft_tokens


@pytest.mark.parametrize("name", KINDS)
def test_one_alone_takes_fewer_steps(driver: EngineDriver, plain: dict[str, Generated], name: str) -> None:
    steps = 0
    launch: Callable[..., None] = driver.executor.launch

    def counted(scheduled: object) -> None:
        nonlocal steps
        steps += 1
        launch(scheduled)

    (request,) = [request for request in requests() if request.request_id == name]
    driver.executor.launch = counted  # type: ignore[method-assign, assignment]
    try:
        alone = driver.run(driver.scheduler(drafter=Oracle({name: plain[name].token_ids}, 1.0)), [request])[name]
    finally:
        driver.executor.launch = launch  # type: ignore[method-assign]
    assert told(alone) == told(plain[name])
    assert steps <= max(4, 0.5 * len(alone.token_ids))


def test_under_preemption(driver: EngineDriver, plain: dict[str, Generated]) -> None:
    scheduler = driver.scheduler(num_blocks=14, drafter=Oracle({name: one.token_ids for name, one in plain.items()}, 0.8))
    together = driver.run(scheduler, requests())
    assert scheduler.num_preemptions > 0
    for name, one in plain.items():
        assert together[name].token_ids == one.token_ids, name
