"""`triptych serve` as a person runs it: real processes, the real default model."""

from __future__ import annotations

import signal

import pytest
from support.stack import serving

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def test_it_answers_recovers_from_a_killed_engine_and_leaves_no_process() -> None:
    with serving("--engine.kv-cache-memory", "64M", "--engine.max-num-seqs", "8") as server:
        url = server.wait_until_started()
        assert "Paris" in server.ask(url)
        before = server.services()
        before["engine"].kill()
        server.wait_for(r"engine died \(SIGKILL\); its last lines:")
        server.wait_for(r"engine is ready", times=2)
        server.wait_until_ready(url)
        assert "Paris" in server.ask(url)
        after = server.services()
        assert after["engine"] != before["engine"]
        assert after["gateway"] == before["gateway"]
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == 0
        assert not any(service.is_running() for service in after.values())


def test_a_model_that_cannot_be_served_ends_it_with_the_reason() -> None:
    with serving("--max-model-len", "100000") as server:
        assert server.process.wait(timeout=240) == 1
        server.wait_for(r"max_model_len 100000 is more than the model's context of 8192 tokens")
        server.wait_for(r"triptych: (engine|frontend) ended before it was ready \(exit code 1\)")
        assert server.log.count("starting") == 0
