"""Several processes that compute one model: what one of them does concerns all."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import wait
from pathlib import Path

import psutil
import pytest
from support.builders.engine import a_request
from support.drivers.worker_engine import WAIT_S, Engine, assert_expected, some_requests, suspend
from support.fakes.worker import CRASH, DIFFER, FAIL, HANG, HalfRefusing, a_worker
from triptych.errors import ModelNotFoundError, UnsupportedModelError
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.executor import worker_group

RANKS = 3


@pytest.fixture
def engine(started: list[Engine]) -> Engine:
    started.append(Engine(a_worker(num_workers=RANKS)))
    return started[0]


def test_all_compute_the_same(engine: Engine) -> None:
    requests = some_requests()
    engine.finish(*requests)
    assert_expected(engine, requests)
    assert len(set(engine.executor.pids)) == RANKS


@pytest.mark.parametrize("danger", [CRASH, FAIL, DIFFER], ids=["crashes", "fails", "differs"])
def test_what_one_rank_does_ends_the_request_that_is_the_reason(
    engine: Engine, danger: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It alone ends; all ranks are others then, and the rest of the sequences go on."""
    before, requests = engine.executor.pids, some_requests()
    engine.finish(*requests[:3], a_request("bad", [danger, 1]), *requests[3:])
    assert_expected(engine, requests)
    assert not engine.tokens["bad"]
    assert engine.last["bad"].error is not None
    assert not set(before) & set(engine.executor.pids)
    assert not any(psutil.pid_exists(pid) for pid in before)
    reason = {CRASH: "was ended by SIGSEGV", FAIL: "from process", DIFFER: "have sampled different tokens"}[danger]
    assert reason in caplog.text


def test_a_rank_that_hangs_is_told_with_the_stacks_of_all(started: list[Engine], capfd: pytest.CaptureFixture[str]) -> None:
    started.append(engine := Engine(a_worker(step_timeout_s=2.0, num_workers=RANKS)))
    requests = some_requests()
    engine.finish(*requests, a_request("bad", [HANG, 1]))
    assert_expected(engine, requests)
    assert engine.last["bad"].error is not None
    assert len(re.findall(r"Current thread|most recent call first", capfd.readouterr().err)) >= RANKS


def test_a_rank_that_is_stopped_is_replaced(started: list[Engine], caplog: pytest.LogCaptureFixture) -> None:
    started.append(engine := Engine(a_worker(step_timeout_s=2.0, num_workers=RANKS)))
    suspend(engine.executor.pids[1])
    requests = some_requests()
    engine.finish(*requests)
    assert_expected(engine, requests)
    assert "rank 1" in caplog.text


def test_an_idle_rank_that_is_killed_takes_the_others_along(started: list[Engine]) -> None:
    lost: list[float] = []
    started.append(engine := Engine(a_worker(num_workers=RANKS, on_lost=lambda: lost.append(time.monotonic()))))
    before = engine.executor.pids
    os.kill(before[2], signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while not lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(lost) == 1
    assert not any(psutil.pid_exists(pid) for pid in before)
    requests = some_requests()
    engine.finish(*requests)
    assert_expected(engine, requests)


def test_a_model_that_one_rank_refuses_is_refused_though_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "_GRACE_S", 0.2)
    executor = a_worker(HalfRefusing, num_workers=2)
    with pytest.raises(UnsupportedModelError, match="this rank is of no kind that is known"):
        executor.load()
    pids = executor.pids
    executor.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_what_is_prepared_is_prepared_in_all(engine: Engine) -> None:
    constraint = engine.executor.compile_constraint(ConstraintSpec("json_schema", "slow"))
    assert constraint.result(timeout=WAIT_S) is not None
    adapter = engine.executor.load_lora("mine").result(timeout=WAIT_S)
    assert adapter.digest == "digest of mine"
    with pytest.raises(ModelNotFoundError):
        engine.executor.load_lora("unknown").result(timeout=WAIT_S)
    assert not wait([engine.executor.compile_constraint(ConstraintSpec("json_schema", "a"))], WAIT_S).not_done


def test_nothing_is_left_of_where_they_found_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = Engine(a_worker(num_workers=2))
    assert list(tmp_path.iterdir())
    engine.stop()
    assert not list(tmp_path.iterdir())
