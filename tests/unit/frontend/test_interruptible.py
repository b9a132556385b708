"""Jobs that are ended from outside leave their thread usable."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from triptych_frontend.prompt.interruptible import Interrupted, InterruptibleJob


def test_an_endless_job_ends_and_its_thread_goes_on() -> None:
    started = threading.Event()

    def endless() -> None:
        while True:
            started.set()

    with ThreadPoolExecutor(1) as pool:
        job = InterruptibleJob(endless)
        future = pool.submit(job)
        assert started.wait(30)
        job.interrupt()
        with pytest.raises(Interrupted):
            future.result(30)
        assert pool.submit(InterruptibleJob(lambda: 5)).result(30) == 5


def test_interrupting_never_strikes_the_threads_next_job() -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(500):
            job = InterruptibleJob(lambda: sum(range(100)))
            first, second = pool.submit(job), pool.submit(lambda: sum(range(2000)))
            job.interrupt()
            assert first.exception(30) is None or isinstance(first.exception(), Interrupted)
            assert second.result(30) == sum(range(2000))


def test_a_job_that_was_ended_while_it_waited_does_not_begin() -> None:
    ran = []
    job = InterruptibleJob(lambda: ran.append(1))
    job.interrupt()
    with pytest.raises(Interrupted):
        job()
    assert not ran
