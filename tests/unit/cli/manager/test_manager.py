"""Which models have memory: turns, pins, failures and cancelled callers, with services that are only counted."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.errors import InternalError, InvalidRequestError, ModelNotFoundError, ServiceUnavailableError
from triptych_cli.manager import manager as module
from triptych_cli.manager.manager import ModelManager
from triptych_cli.manager.model import Model, State, Usage, victims

MIB = 1 << 20


@dataclass
class Machine:
    """Memory that models take, with what they take while they start, and the most that it ever was."""

    taken: dict[str, int] = field(default_factory=dict)
    most: int = 0

    def take(self, name: str, size: int) -> None:
        self.taken[name] = size
        self.most = max(self.most, sum(self.taken.values()))


@dataclass
class Services:
    """Services that take time, and may fail."""

    name: str
    machine: Machine
    awake: int
    asleep: int
    pause_s: float = 0.0
    fails: bool = False
    num_live: int = 0
    idle_s: float = 1.0
    calls: list[str] = field(default_factory=list)
    is_awake: bool = False

    async def _do(self, what: str, size: int, before: bool) -> None:
        self.calls.append(what)
        if before:
            self.machine.take(self.name, size)
        await asyncio.sleep(self.pause_s)
        if self.fails:
            self.machine.take(self.name, self.asleep)
            raise InternalError(f"{self.name} fails")
        self.machine.take(self.name, size)

    async def start(self) -> None:
        await self._do("start", self.awake, True)
        self.is_awake = True

    async def stop(self) -> None:
        self.calls.append("stop")
        self.machine.taken.pop(self.name, None)
        self.is_awake = False

    async def sleep(self) -> None:
        while self.num_live:  # noqa: ASYNC110 - a fake
            await asyncio.sleep(0.001)
        self.is_awake = False
        await self._do("sleep", self.asleep, False)

    async def wake(self) -> None:
        await self._do("wake", self.awake, True)
        self.is_awake = True

    async def usage(self) -> Usage:
        return Usage(self.num_live, 0.0 if self.num_live else self.idle_s)


def a_model(name: str, machine: Machine, awake: int = 100, asleep: int = 10, **traits: float) -> Model:
    services = Services(name, machine, awake * MIB, asleep * MIB, **traits)  # type: ignore[arg-type]
    return Model(name, f"org/{name}", awake * MIB, asleep * MIB, services)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_AWAKE_S", 0.0)


def states(manager: ModelManager) -> dict[str, str]:
    return {model.name: State.Name(model.state).removeprefix("MODEL_STATE_") for model in manager.models}  # type: ignore[arg-type]


async def test_what_the_memory_does_not_suffice_for_starts_and_sleeps() -> None:
    machine = Machine()
    manager = ModelManager(215 * MIB)
    await manager.start([a_model(name, machine) for name in "abc"])
    assert states(manager) == {"a": "AWAKE", "b": "AWAKE", "c": "ASLEEP"}
    assert machine.most <= manager.budget  # type: ignore[operator]


async def test_the_least_recently_used_one_sleeps_for_the_one_that_is_wanted() -> None:
    machine = Machine()
    manager = ModelManager(215 * MIB)
    models = [a_model("a", machine, idle_s=1.0), a_model("b", machine, idle_s=5.0), a_model("c", machine)]
    await manager.start(models)
    await asyncio.gather(*(manager.wake("c") for _ in range(20)))
    assert states(manager) == {"a": "AWAKE", "b": "ASLEEP", "c": "AWAKE"}
    assert models[2].services.calls == ["start", "sleep", "wake"]  # type: ignore[attr-defined]
    manager.pin("a", True)
    await manager.wake("b")
    assert states(manager) == {"a": "AWAKE", "b": "AWAKE", "c": "ASLEEP"}


async def test_one_that_works_gives_way_after_its_work() -> None:
    machine = Machine()
    manager = ModelManager(115 * MIB)
    busy, other = a_model("a", machine), a_model("b", machine)
    await manager.start([busy, other])
    busy.services.num_live = 1  # type: ignore[attr-defined]
    waking = asyncio.create_task(manager.wake("b"))
    await asyncio.sleep(0.02)
    assert states(manager) == {"a": "DRAINING", "b": "ASLEEP"}
    busy.services.num_live = 0  # type: ignore[attr-defined]
    await waking
    assert states(manager) == {"a": "ASLEEP", "b": "AWAKE"}


async def test_what_can_never_fit_puts_nobody_to_sleep() -> None:
    machine = Machine()
    manager = ModelManager(215 * MIB)
    await manager.start([a_model(name, machine) for name in "abc"])
    manager.pin("a", True)
    manager.pin("b", True)
    with pytest.raises(ServiceUnavailableError, match=r"no memory for the model c beside those that are pinned \(a, b\)"):
        await manager.wake("c")
    manager.pin("b", False)
    with pytest.raises(InvalidRequestError, match="huge can never fit: it needs 530 MiB of 215"):
        await manager.load(a_model("huge", machine, awake=500))
    assert states(manager) == {"a": "AWAKE", "b": "AWAKE", "c": "ASLEEP"}


async def test_a_model_that_fails_says_so_and_is_tried_again() -> None:
    machine = Machine()
    manager = ModelManager(None)
    good, bad = a_model("good", machine), a_model("bad", machine)
    bad.services.fails = True  # type: ignore[attr-defined]
    await manager.start([good, bad])
    assert (states(manager), bad.error) == ({"good": "AWAKE", "bad": "FAILED"}, "bad fails")
    with pytest.raises(InternalError):
        await manager.wake("bad")
    bad.services.fails = False  # type: ignore[attr-defined]
    await manager.wake("bad")
    assert (states(manager)["bad"], bad.error) == ("AWAKE", "")


async def test_models_come_and_go() -> None:
    machine = Machine()
    manager = ModelManager(215 * MIB)
    await manager.start([a_model("a", machine)])
    await manager.load(a_model("b", machine))
    with pytest.raises(InvalidRequestError, match="there is a model b already"):
        await manager.load(a_model("b", machine))
    failing = a_model("c", machine, awake=50)
    failing.services.fails = True  # type: ignore[attr-defined]
    with pytest.raises(InternalError):
        await manager.load(failing)
    assert "c" not in states(manager)
    assert "c" not in machine.taken
    await manager.unload("a")
    assert states(manager) == {"b": "AWAKE"}
    with pytest.raises(ModelNotFoundError, match="no model 'a' here; there are: b"):
        await manager.wake("a")


async def test_a_caller_that_leaves_leaves_nothing_half_done() -> None:
    machine = Machine()
    manager = ModelManager(115 * MIB)
    await manager.start([a_model("a", machine), a_model("b", machine, pause_s=0.01)])
    waking = asyncio.create_task(manager.wake("b"))
    await asyncio.sleep(0.003)
    waking.cancel()
    await manager.sleep("b")  # in its turn
    assert states(manager) == {"a": "ASLEEP", "b": "ASLEEP"}


async def test_a_sleeping_model_whose_service_was_started_anew_is_put_to_sleep_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0.005)
    machine = Machine()
    manager = ModelManager(115 * MIB)
    model = a_model("b", machine)
    await manager.start([a_model("a", machine), model])
    watching = asyncio.create_task(manager.watch())
    machine.take("b", 100 * MIB)
    await asyncio.sleep(0.03)
    watching.cancel()
    assert machine.taken["b"] == 10 * MIB


async def test_those_who_wait_for_a_model_share_one_wake_and_those_who_left_need_none() -> None:
    machine = Machine()
    manager = ModelManager(115 * MIB)
    models = [a_model("a", machine, pause_s=0.002), a_model("b", machine, pause_s=0.002)]
    await manager.start(models)
    calls = [models[number].services.calls for number in range(2)]  # type: ignore[attr-defined]
    await asyncio.gather(*(manager.wake("ab"[number % 2]) for number in range(40)))
    assert sum(one.count("wake") for one in calls) <= 2
    tasks = [asyncio.create_task(manager.wake("ab"[number % 2])) for number in range(40)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    before = sum(one.count("wake") for one in calls)
    await asyncio.sleep(0.05)
    assert sum(one.count("wake") for one in calls) <= before + 1, "models are woken for nobody"


async def test_one_that_does_not_sleep_keeps_its_memory() -> None:
    machine = Machine()
    manager = ModelManager(115 * MIB)
    stuck, other = a_model("a", machine), a_model("b", machine)
    await manager.start([stuck, other])
    stuck.services.fails = True  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises((InternalError, ServiceUnavailableError)):
            await manager.wake("b")
    assert states(manager) == {"a": "FAILED", "b": "ASLEEP"}
    assert machine.most <= 115 * MIB
    stuck.services.fails = False  # type: ignore[attr-defined]
    await manager._give_back(stuck)  # as `watch` does
    await manager.wake("b")
    assert states(manager)["b"] == "AWAKE"


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_random_requests_keep_the_budget_and_everybody_gets_a_turn(seed: int) -> None:
    asyncio.run(_random_requests(random.Random(seed)))


async def _random_requests(chance: random.Random) -> None:
    machine = Machine()
    sizes = [chance.randint(20, 120) for _ in range(4)]
    budget = (max(sizes) + chance.randint(40, 150)) * MIB
    manager = ModelManager(budget)
    models = [a_model(f"m{number}", machine, size, pause_s=chance.choice([0, 0, 0.001])) for number, size in enumerate(sizes)]
    await manager.start(models)
    answers = 0

    async def request(model: Model, work_s: float) -> None:
        nonlocal answers
        services: Services = model.services  # type: ignore[assignment]
        while True:
            await manager.wake(model.name)
            if model.state == State.MODEL_STATE_AWAKE:
                break
        services.num_live += 1
        await asyncio.sleep(work_s)
        assert services.is_awake, "a model that works was put to sleep"
        services.num_live -= 1
        answers += 1

    num_cancelled, tasks = 0, []
    for _ in range(60):
        task = asyncio.create_task(request(chance.choice(models), chance.choice([0, 0.001, 0.003])))
        tasks.append(task)
        if chance.random() < 0.1:
            await asyncio.sleep(0)
            num_cancelled += 1
            pending = asyncio.create_task(manager.wake(chance.choice(models).name))
            await asyncio.sleep(0)
            pending.cancel()
        if chance.random() < 0.2:
            await asyncio.sleep(0.001)
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert answers == 60
    assert machine.most <= budget, "more memory was taken than there is"


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 9), st.integers(1, 50)), max_size=6), st.integers(-10, 200))
def test_victims_free_enough_and_none_too_many(traits: list[tuple[int, float, int]], missing: int) -> None:
    machine = Machine()
    pairs = [
        (a_model(str(number), machine, size + 10), Usage(live, 0.0 if live else idle))
        for number, (live, idle, size) in enumerate(traits)
    ]
    chosen = victims(pairs, missing * MIB)
    freed = [model.awake_bytes - model.asleep_bytes for model, _ in pairs]
    if chosen is None:
        assert sum(freed) < missing * MIB
        return
    ours = [model.awake_bytes - model.asleep_bytes for model in chosen]
    assert sum(ours) >= missing * MIB
    assert not chosen or sum(ours[:-1]) < missing * MIB
    busy = {model.name for model, usage in pairs if usage.num_live_requests}
    idle_left = [model for model, usage in pairs if model not in chosen and not usage.num_live_requests]
    assert not (any(model.name in busy for model in chosen) and idle_left), "one that works gives way before one that does not"
