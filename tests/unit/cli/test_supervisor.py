"""The supervisor over real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.children import RecordingReporter, pids, spec, tell_to_end
from triptych_cli.stack.supervisor import ServiceFailedError, ServiceSpec, Supervisor


@contextlib.asynccontextmanager
async def running(
    specs: Sequence[ServiceSpec], stop_grace_s: float = 15.0
) -> AsyncIterator[tuple[Supervisor, RecordingReporter, asyncio.Task[None]]]:
    """A supervisor at work; stopped at the end unless the test did so."""
    reporter = RecordingReporter()
    supervisor = Supervisor([replace(one, stop_grace_s=stop_grace_s) for one in specs], reporter)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, reporter, task
    finally:
        supervisor.kill()
        await asyncio.wait([task])


def none_left(directory: Path, *names: str) -> bool:
    return not any(psutil.pid_exists(pid) for name in names for pid in pids(directory, name))


async def test_starts_in_order_and_stops_in_reverse_leaving_no_process(tmp_path: Path) -> None:
    names = ["engine", "frontend", "gateway"]
    async with running([spec(tmp_path, name) for name in names]) as (supervisor, reporter, task):
        await reporter.wait_for("all ready")
        first_pids = [pids(tmp_path, name)[0] for name in names]
        assert first_pids == sorted(first_pids)
        supervisor.stop()
        await task
    assert (tmp_path / "stopped").read_text().split() == ["gateway", "frontend", "engine"]
    assert none_left(tmp_path, *names)
    assert ("engine", "engine line 29") in reporter.lines


async def test_a_dead_service_is_reported_with_its_last_lines_and_started_again(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "engine"), spec(tmp_path, "gateway")]) as (supervisor, reporter, task):
        await reporter.wait_for("all ready")
        await tell_to_end(tmp_path, "engine", 7)
        await reporter.wait_for("ready", "engine", times=2)
        assert ("died", "engine", "exit code 7") in reporter.events
        assert reporter.last_lines == [*(f"engine line {number}" for number in range(11, 30)), "engine was told to end"]
        assert len(pids(tmp_path, "engine")) == 2
        assert len(pids(tmp_path, "gateway")) == 1
        supervisor.stop()
        await task
    assert none_left(tmp_path, "engine", "gateway")


async def test_a_killed_service_is_reported_by_the_signal(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "engine")]) as (_, reporter, _task):
        await reporter.wait_for("all ready")
        os.kill(pids(tmp_path, "engine")[0], signal.SIGKILL)
        await reporter.wait_for("died", "engine", "SIGKILL")


async def test_three_deaths_in_a_minute_end_everything(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "engine"), spec(tmp_path, "gateway")]) as (_, reporter, task):
        await reporter.wait_for("all ready")
        for death in (1, 2, 3):
            await reporter.wait_for("ready", "engine", times=death)
            await tell_to_end(tmp_path, "engine", 9)
        with pytest.raises(ServiceFailedError, match=r"engine died 3 times within 60 s \(now: exit code 9\)") as failure:
            await task
        assert failure.value.last_lines[-1] == "engine was told to end"
    assert len(pids(tmp_path, "engine")) == 3
    assert none_left(tmp_path, "engine", "gateway")


async def test_deaths_far_apart_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_cli.stack.supervisor.DEATH_WINDOW_S", 0.0)
    async with running([spec(tmp_path, "engine")]) as (_, reporter, task):
        for death in (1, 2, 3, 4):
            await reporter.wait_for("ready", "engine", times=death)
            await tell_to_end(tmp_path, "engine", 9)
        await reporter.wait_for("ready", "engine", times=5)
        assert not task.done()


async def test_a_service_that_refuses_to_start_is_not_tried_again(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "gateway"), spec(tmp_path, "engine", "refuse")]) as (_, _reporter, task):
        with pytest.raises(ServiceFailedError, match=r"engine ended before it was ready \(exit code 1\)") as failure:
            await task
        assert failure.value.last_lines == ["first line of engine", "engine cannot start: the model is unsupported"]
    assert len(pids(tmp_path, "engine")) == 1
    assert none_left(tmp_path, "gateway")


async def test_one_that_is_not_essential_and_refuses_to_start_is_left_out(tmp_path: Path) -> None:
    specs = [spec(tmp_path, "engine"), spec(tmp_path, "encoder", "refuse", is_essential=False)]
    async with running(specs) as (supervisor, reporter, task):
        await reporter.wait_for("left out", "encoder", "exit code 1")
        await reporter.wait_for("all ready")
        assert reporter.last_lines[-1] == "encoder cannot start: the model is unsupported"
        supervisor.stop()
        await task
    assert len(pids(tmp_path, "encoder")) == 1
    assert none_left(tmp_path, "engine", "encoder")


async def test_one_that_is_not_essential_may_die_as_often_as_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_cli.stack.supervisor.RESTART_PAUSE_S", 0.05)
    specs = [spec(tmp_path, "engine"), spec(tmp_path, "encoder", is_essential=False)]
    async with running(specs) as (_, reporter, task):
        await reporter.wait_for("all ready")
        for death in range(1, 6):
            await reporter.wait_for("ready", "encoder", times=death)
            os.kill(pids(tmp_path, "encoder")[-1], signal.SIGKILL)
        await reporter.wait_for("ready", "encoder", times=6)
        assert not task.done()
    assert len(pids(tmp_path, "engine")) == 1


async def test_a_program_that_is_not_there_is_a_failed_service(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    async with running([ServiceSpec("engine", [str(tmp_path / "nowhere")], {}, never)]) as (_, _reporter, task):
        with pytest.raises(ServiceFailedError) as failure:
            await task
        assert "No such file" in failure.value.last_lines[0]


async def test_a_service_that_does_not_hear_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "engine", "stubborn")], stop_grace_s=0.2) as (supervisor, reporter, task):
        await reporter.wait_for("all ready")
        supervisor.stop()
        await task
        assert ("killed", "engine") in reporter.events
    assert none_left(tmp_path, "engine")


async def test_a_second_wish_kills_at_once(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "engine", "stubborn")], stop_grace_s=600) as (supervisor, reporter, task):
        await reporter.wait_for("all ready")
        supervisor.stop()
        await reporter.wait_for("stopping", "engine")
        supervisor.kill()
        await asyncio.wait_for(task, 30)
    assert none_left(tmp_path, "engine")


async def test_what_a_service_started_ends_with_it(tmp_path: Path) -> None:
    async with running([spec(tmp_path, "engine", "parent")]) as (_, reporter, _task):
        await reporter.wait_for("all ready")
        child, grandchild = (psutil.Process(pid) for pid in pids(tmp_path, "engine"))
        await tell_to_end(tmp_path, "engine", 5)
        await reporter.wait_for("died", "engine")
        assert not child.is_running()
        gone, _ = psutil.wait_procs([grandchild], timeout=10)
        assert gone


async def test_of_two_that_stand_in_for_each_other_one_may_die_as_often_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych_cli.stack.supervisor.RESTART_PAUSE_S", 0.05)
    monkeypatch.setattr("triptych_cli.stack.supervisor.TAKE_OVER_S", 0.1)
    twins = [replace(spec(tmp_path, name), group="engine") for name in ("engine-1", "engine-2")]
    async with running(twins) as (supervisor, reporter, task):
        await reporter.wait_for("all ready")
        for times in range(2, 6):
            await tell_to_end(tmp_path, "engine-1", 7)
            await reporter.wait_for("ready", "engine-1", times=times)
        assert not task.done()
        assert len(pids(tmp_path, "engine-2")) == 1
        supervisor.stop()
        await task


async def test_when_all_of_a_group_refuse_to_start_nothing_goes_on(tmp_path: Path) -> None:
    twins = [replace(spec(tmp_path, name, "refuse"), group="engine") for name in ("engine-1", "engine-2")]
    async with running(twins) as (_, reporter, task):
        with pytest.raises(ServiceFailedError, match="before it was ready"):
            await task
        assert [event[:1] for event in reporter.events].count(("left out",)) <= 1
