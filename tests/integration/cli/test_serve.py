"""`triptych serve` as a person runs it: real processes, the real default model."""

from __future__ import annotations

import pytest
from support.stack import serving

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_a_model_that_cannot_be_served_ends_it_with_the_reason() -> None:
    with serving("--max-model-len", "100000") as server:
        assert server.process.wait(timeout=240) == 1
        server.wait_for(r"max_model_len 100000 is more than the model's context of 8192 tokens")
        server.wait_for(r"triptych: (engine|frontend) ended before it was ready \(exit code 1\)")
        assert server.log.count("starting") == 0
