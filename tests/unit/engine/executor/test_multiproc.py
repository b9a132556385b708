"""An engine whose model is computed by another process: what that process does, and how it ends, in all ways."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from support.builders.engine import a_request
from support.drivers.worker_engine import WAIT_S, Engine, assert_expected, some_requests, suspend
from support.fakes.runner import VOCAB_SIZE
from support.fakes.worker import CRASH, EXIT, FAIL, HANG, LOSE_DEVICE, Dying, Refusing, a_worker
from triptych.errors import InternalError, ModelNotFoundError, ServiceUnavailableError, StartupError, UnsupportedModelError
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.executor.protocol import WorkerLostError
from triptych_engine.scheduling.output import SchedulerOutput
from triptych_engine.scheduling.request import FinishReason


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def engine(request: pytest.FixtureRequest, started: list[Engine]) -> Engine:
    started.append(Engine(a_worker(), async_scheduling=request.param))
    return started[0]


def test_texts_are_the_same_as_in_one_process(engine: Engine) -> None:
    requests = some_requests()
    engine.finish(*requests)
    assert_expected(engine, requests)
    assert engine.loaded.vocab_size == VOCAB_SIZE
    assert engine.executor.pids[0] != os.getpid()


def test_a_step_that_fails_fails_its_requests_only(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    pid = engine.executor.pids[0]
    engine.finish(a_request("bad", [FAIL, 1]))
    assert isinstance(engine.last["bad"].error, InternalError)
    notes = [note for record in caplog.records if record.exc_info for note in getattr(record.exc_info[1], "__notes__", ())]
    assert any("in the engine's worker" in note and "in launch" in note for note in notes), "its stack is in the log"
    requests = some_requests()
    engine.finish(*requests)
    assert_expected(engine, requests)
    assert engine.executor.pids[0] == pid


@pytest.mark.parametrize("end", [CRASH, EXIT, LOSE_DEVICE])
def test_a_request_that_ends_the_process_is_the_only_one_to_fail(started: list[Engine], end: int) -> None:
    engine = Engine(a_worker())
    started.append(engine)
    requests = some_requests()
    engine.finish(*requests, a_request("poison", [end, 1]))
    assert_expected(engine, requests)
    assert isinstance(engine.last["poison"].error, InternalError)
    assert "was lost in steps with this request" in str(engine.last["poison"].error)


def test_a_process_that_hangs_is_replaced_and_tells_where_it_was(
    started: list[Engine], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(a_worker(step_timeout_s=1.0))
    started.append(engine)
    requests = some_requests(2)
    engine.finish(*requests, a_request("poison", [HANG, 1]))
    assert_expected(engine, requests)
    assert engine.last["poison"].finish_reason is FinishReason.ERROR
    assert "did not answer to 'result' within 1 s" in caplog.text
    assert "fakes/worker.py" in capfd.readouterr().err, "the stacks of its threads"


def test_a_stopped_process_is_replaced(started: list[Engine]) -> None:
    engine = Engine(a_worker(step_timeout_s=1.0))
    started.append(engine)
    stopped = suspend(engine.executor.pids[0])
    requests = some_requests(2)
    engine.finish(*requests)
    assert_expected(engine, requests)
    assert not stopped.is_running()


def test_an_idle_process_that_is_killed_is_told_at_once() -> None:
    lost = threading.Event()
    executor = a_worker(on_lost=lost.set)
    executor.load()
    os.kill(executor.pids[0], signal.SIGKILL)
    assert lost.wait(WAIT_S)
    with pytest.raises(WorkerLostError, match="was ended by SIGKILL"):
        executor.check_health()
    lost.clear()
    executor.restore()
    executor.check_health()
    executor.close()
    executor.close()
    assert not lost.is_set(), "it was asked to end"


def test_errors_of_loading_come_back() -> None:
    executor = a_worker(Refusing)
    with pytest.raises(UnsupportedModelError, match="of no kind that is known"):
        executor.load()
    executor.close()


def test_a_process_that_ends_while_it_loads_is_told() -> None:
    executor = a_worker(Dying)
    with pytest.raises(StartupError, match="ended with exit status 9"):
        executor.load()
    executor.close()


def test_before_loading_nothing_can_be_asked() -> None:
    with pytest.raises(ServiceUnavailableError):
        a_worker().compile_constraint(ConstraintSpec("regex", "a"))


def test_what_nobody_holds_is_released(capfd: pytest.CaptureFixture[str]) -> None:
    executor = a_worker()
    executor.load()

    def num_prepared() -> int:
        gc.collect()
        executor.launch(SchedulerOutput())
        executor.result(0)
        capfd.readouterr()
        executor.free_cache()
        return int(capfd.readouterr().err.split()[0])

    def assert_prepared(expected: int) -> None:
        """The thread that has set a result may hold it a moment longer than who got it."""
        deadline = time.monotonic() + WAIT_S
        while (num := num_prepared()) > expected and time.monotonic() < deadline:
            time.sleep(0.01)
        assert num == expected

    held = [executor.compile_constraint(ConstraintSpec("regex", text)).result(WAIT_S) for text in "abc"]
    adapter = executor.load_lora("mine").result(WAIT_S)
    assert adapter.digest == "digest of mine"
    assert_prepared(4)
    held.pop()
    assert_prepared(3)
    executor.compile_constraint(ConstraintSpec("regex", "of nobody")).result(WAIT_S)
    held.clear()
    assert_prepared(1)
    with pytest.raises(ModelNotFoundError, match="no adapter 'unknown'") as refused:
        executor.load_lora("unknown").result(WAIT_S)
    assert refused.value.field == "lora"
    executor.close()


def test_large_messages_cross(engine: Engine) -> None:
    """Answers of 8 MB one way, prompts of 3 MB the other way, while steps are in flight."""
    requests = [a_request(f"large{index}", [1, 2, index], max_tokens=10) for index in range(4)]
    for request in requests:
        request.sampling = replace(request.sampling, bad_token_sequences=tuple((number,) for number in range(200_000)))
    engine.finish(*requests)
    assert_expected(engine, requests)


def test_new_processes_have_what_the_old_ones_had(capfd: pytest.CaptureFixture[str]) -> None:
    """Adapters and constraints that are held, and what was asked for and not answered, also when they are lost in a row."""
    lost = threading.Event()
    executor = a_worker(on_lost=lost.set)
    executor.load()
    held = [executor.compile_constraint(ConstraintSpec("regex", text)).result(WAIT_S) for text in ("a", "slow")]
    held.append(executor.load_lora("mine").result(WAIT_S))
    # It is asked for, and dies of it.
    asked = executor.compile_constraint(ConstraintSpec("regex", "crash"))
    assert lost.wait(WAIT_S)
    asked_of_none = executor.load_lora("while there is none")
    executor.restore()
    lost.clear()
    os.kill(executor.pids[0], signal.SIGKILL)
    assert lost.wait(WAIT_S)
    executor.restore()
    held += [asked.result(WAIT_S), asked_of_none.result(WAIT_S), executor.load_lora("later").result(WAIT_S)]
    capfd.readouterr()
    deadline_s, said = time.monotonic() + WAIT_S, ""
    while said != f"{len(held)} are prepared\n":  # one of them takes half a second
        assert time.monotonic() < deadline_s, said
        executor.free_cache()
        said = capfd.readouterr().err
    executor.close()


def test_a_process_that_is_lost_while_asleep_is_as_good_as_freed() -> None:
    lost = threading.Event()
    executor = a_worker(on_lost=lost.set)
    executor.load()
    os.kill(executor.pids[0], signal.SIGKILL)
    assert lost.wait(WAIT_S)
    executor.free_cache()
    executor.unload()
    executor.restore()
    executor.check_health()
    executor.close()


def test_what_is_asked_of_a_stopped_process_blocks_nobody() -> None:
    executor = a_worker()
    executor.load()
    suspend(executor.pids[0])
    started_s = time.monotonic()
    asked = [executor.compile_constraint(ConstraintSpec("regex", "a" * 100_000)) for _ in range(50)]
    assert time.monotonic() - started_s < 2
    executor.close()
    assert all(one.exception(WAIT_S) for one in asked)


def test_after_the_end_no_other_process_is_started() -> None:
    executor = a_worker()
    executor.load()
    executor.close()
    with pytest.raises(WorkerLostError, match="is stopping"):
        executor.restore()


def test_at_the_end_nobody_waits_for_what_was_asked() -> None:
    executor = a_worker()
    executor.load()
    suspend(executor.pids[0])
    asked = executor.compile_constraint(ConstraintSpec("regex", "a"))
    executor.close()
    with pytest.raises(ServiceUnavailableError, match="is stopping"):
        asked.result(WAIT_S)


_PARENT = """
import sys
from support.builders.engine import a_request, a_scheduler
from support.fakes.worker import HANG, a_worker
from triptych_engine.core import EngineCore

executor = a_worker()
executor.load()
scheduler = a_scheduler()
core = EngineCore(scheduler, executor, lambda *arguments: None)
print(executor.pids[0], flush=True)
if sys.argv[1] == "in a step":
    scheduler.add(a_request("r", [HANG]))
    core.step()
sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["idle", "in a step"])
def test_it_ends_with_the_engine_however_that_ends(when: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, when], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.5)
        parent.kill()
        worker.wait(WAIT_S)
