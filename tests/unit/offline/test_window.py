"""The window of jobs in flight."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.errors import RequestAbortedError
from triptych.offline.calls.loop import Job, LoopThread, Window


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread

    async def nothing() -> None:
        pass

    thread.close(nothing)
    thread.close(nothing)


class Watched:
    """Jobs that note how many of them run at the same time, and their bytes."""

    def __init__(self, sizes: list[int], pauses: list[int]) -> None:
        self._sizes, self._pauses = sizes, pauses
        self.running: dict[int, int] = {}
        self.seen: list[tuple[int, int]] = []

    def jobs(self) -> Iterator[Job[int]]:
        for index, size in enumerate(self._sizes):
            yield Job(functools.partial(self._run, index), size)

    async def _run(self, index: int) -> int:
        self.running[index] = self._sizes[index]
        self.seen.append((len(self.running), sum(self.running.values())))
        for _ in range(self._pauses[index]):
            await asyncio.sleep(0)
        del self.running[index]
        return index


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=30),
    st.integers(1, 6),
    st.integers(1, 40),
)
def test_all_jobs_run_once_within_both_limits(
    loop: LoopThread, shape: list[tuple[int, int]], max_jobs: int, max_bytes: int
) -> None:
    watched = Watched([size for size, _ in shape], [pause for _, pause in shape])
    ended = [(index, task.result()) for index, task in Window(max_jobs, max_bytes).run(loop, watched.jobs())]
    assert sorted(ended) == [(index, index) for index in range(len(shape))]
    largest = max((size for size, _ in shape), default=0)
    assert all(count <= max_jobs for count, _ in watched.seen)
    # The last one that is let in may cross the limit; one that is larger than the limit runs alone.
    assert all(num_bytes < max_bytes + largest for count, num_bytes in watched.seen if count > 1)


def test_jobs_are_taken_as_there_is_room(loop: LoopThread) -> None:
    gate, taken = threading.Event(), []

    async def wait() -> None:
        await asyncio.to_thread(gate.wait)

    def jobs() -> Iterator[Job[None]]:
        for number in range(10):
            taken.append(number)
            if number == 3:
                # Three run, so that this one is asked for only after one of them ended.
                assert gate.is_set()
            if number == 2:
                gate.set()
            yield Job(wait, 0)

    assert sum(1 for _ in Window(3, 1).run(loop, jobs())) == 10
    assert taken == [*range(10)]


def test_leaving_early_cancels_what_runs_and_waits_for_its_end(loop: LoopThread) -> None:
    ended: list[int] = []

    started: asyncio.Queue[int] = asyncio.Queue()

    async def forever(number: int) -> None:
        try:
            started.put_nowait(number)
            if number:
                await asyncio.Event().wait()
            while started.qsize() < 5:  # noqa: ASYNC110 - the others start in the same turns of the loop
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    jobs = (Job(functools.partial(forever, number), 0) for number in range(5))
    with contextlib.closing(Window(5, 1).run(loop, jobs)) as results:
        assert next(results)[0] == 0
    assert sorted(ended) == [0, 1, 2, 3, 4]


def test_an_error_of_a_job_is_its_own(loop: LoopThread) -> None:
    async def fail() -> None:
        raise ValueError("bad")

    ((index, task),) = Window(1, 1).run(loop, [Job(fail, 0)])
    assert index == 0
    assert isinstance(task.exception(), ValueError)


def test_an_interrupt_at_any_place_ends_the_call(loop: LoopThread) -> None:
    """Ctrl-C can come between any two instructions, also where a result is taken but not yet counted."""

    class Interrupted(BaseException):
        pass

    async def nothing() -> None:
        pass

    def interrupted_after(num_events: int) -> bool:
        left = num_events
        code = Window.run.__code__

        def on_event(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if left < 0:
                sys.settrace(None)
                raise Interrupted
            return on_event

        jobs = [Job(nothing, 1)] * 4
        sys.settrace(lambda frame, event, argument: on_event(frame, event, argument) if frame.f_code is code else None)  # type: ignore[arg-type, return-value]
        try:
            for _ in Window(2, 100).run(loop, jobs):
                pass
        except Interrupted:
            return True
        finally:
            sys.settrace(None)
        return False

    before = sys.gettrace()
    try:
        num_places = next(number for number in range(0, 10_000, 7) if not interrupted_after(number))
    finally:
        sys.settrace(before)
    assert num_places > 200


def test_errors_that_nobody_reads_are_not_logged(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("bad")

    with contextlib.closing(Window(5, 1).run(loop, [Job(fail, 0)] * 5)) as ended:
        next(ended)
    gc.collect()
    loop.run(asyncio.sleep(0))
    assert not caplog.records


def test_a_loop_that_was_closed() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def nothing() -> None:
        pass

    thread = LoopThread()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: thread.run(forever()))
        while not thread.run(_num_tasks()) > 1:
            pass
        thread.close(nothing)
        with pytest.raises(RequestAbortedError, match="was closed"):
            waiting.result(10)
    with pytest.raises(RequestAbortedError, match="was closed"):
        thread.run(nothing())


async def _num_tasks() -> int:
    return len(asyncio.all_tasks())
