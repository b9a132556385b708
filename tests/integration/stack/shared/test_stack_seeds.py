"""A seed is a promise: the same text, alone or among others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.stack import Stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]
_STORY = {"model": DEFAULT_MODEL, "prompt": "Once upon a time, in a land far away,", "max_tokens": 24}


def complete(stack: Stack, **fields: Any) -> list[str]:
    """The texts of the choices."""
    answer = stack.http.post("/v1/completions", json=_STORY | fields).raise_for_status().json()
    return [choice["text"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]


def test_choice_i_is_what_seed_plus_i_gives_alone(stack: Stack) -> None:
    texts = complete(stack, seed=5, n=3, temperature=1)
    assert len(set(texts)) == 3
    assert complete(stack, seed=6, temperature=1) == [texts[1]]


def test_a_seed_gives_the_same_text_whatever_else_runs(stack: Stack) -> None:
    seeded = {"prompt": "The old lighthouse keeper", "seed": 11, "temperature": 0.8, "top_p": 0.95}
    alone = complete(stack, **seeded)
    other = {"ignore_eos": True, "temperature": 1, "max_tokens": 48}
    with ThreadPoolExecutor(10) as pool:
        others = [pool.submit(complete, stack, **other, seed=number) for number in range(8)]
        stack.wait_for_load(8)
        among_others = [pool.submit(complete, stack, **seeded) for _ in range(2)]
    assert [future.result() for future in among_others] == [alone] * 2
    assert len({future.result()[0] for future in others}) == 8
    assert complete(stack, **seeded | {"seed": 12}) != alone
