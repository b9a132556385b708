"""What each of several engines on one machine gets: memory, and GPUs."""

from __future__ import annotations

import pytest
from triptych_cli.errors import CommandError
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import plan
from triptych_common.host.memory import Memory


@pytest.mark.parametrize(
    ("engines", "with_encoder", "given", "limit"),
    [
        (1, False, {}, (16 << 30) - (512 << 20)),
        (4, False, {}, ((16 << 30) - (512 << 20)) // 4),
        (2, True, {"encoder": ["--cache-memory", "2G"]}, ((16 << 30) - (512 << 20) - (3 << 30)) // 2),
        (1, True, {"encoder": ["--cache-memory", "20G"]}, 8 << 30),  # half at least
        (1, False, {"engine": ["--memory-limit", "1G"]}, 1 << 30),
        (2, False, {"engine": ["--kv-cache-memory", "1G"]}, None),
        (2, False, {"engine": ["--device", "cuda"]}, None),
    ],
)
def test_engines_share_the_available_memory_fairly(
    engines: int, with_encoder: bool, given: dict[str, list[str]], limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych_cli.stack.plan.usable_memory", lambda: Memory(32 << 30, 16 << 30))
    services = plan(ServeOptions("some/model", engines=engines), given, with_encoder=with_encoder)
    limits = [service.settings.memory_limit for service in services if service.kind == "engine"]  # type: ignore[attr-defined]
    assert limits == [limit] * engines


def test_a_memory_limit_in_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_ENGINE_MEMORY_LIMIT", "1G")
    (engine, *_) = plan(ServeOptions("some/model"), {}, with_encoder=False)
    assert engine.settings.memory_limit == 1 << 30  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("gpus", "engines", "given", "expected"),
    [
        (1, 2, [], [("cuda:0", 0.4), ("cuda:0", 0.4)]),
        (2, 3, [], [("cuda:0", 0.4), ("cuda:1", 0.8), ("cuda:0", 0.4)]),
        (4, 2, [], [("cuda:0", 0.8), ("cuda:1", 0.8)]),
        (2, 1, [], [("auto", None)]),
        (0, 2, [], [("auto", None)] * 2),
        (2, 2, ["--device", "cpu"], [("cpu", None)] * 2),
        (2, 2, ["--memory-utilization", "0.3"], [("auto", 0.3)] * 2),
    ],
)
def test_engines_share_the_gpus(
    gpus: int, engines: int, given: list[str], expected: list[tuple[str, float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych_cli.stack.plan.num_nvidia_gpus", lambda: gpus)
    services = plan(ServeOptions("some/model", engines=engines), {"engine": given}, with_encoder=False)
    settings = [service.settings for service in services if service.kind == "engine"]
    assert [(one.device, one.memory_utilization) for one in settings] == expected  # type: ignore[attr-defined]


def test_some_engines_compute_prompts_and_the_others_know_where_they_are() -> None:
    services = plan(ServeOptions("some/model", engines=4, prefill_engines=2), {}, with_encoder=False)
    engines = [service for service in services if service.kind == "engine"]
    addresses = tuple(engine.address for engine in engines[:2])
    settings = [(one.settings.kv_role, one.settings.kv_peer_addresses) for one in engines]  # type: ignore[attr-defined]
    assert settings == [("prefill", ())] * 2 + [("decode", addresses)] * 2
    plain = plan(ServeOptions("some/model", engines=2), {}, with_encoder=False)
    assert {service.settings.kv_role for service in plain if service.kind == "engine"} == {"both"}  # type: ignore[attr-defined]


def test_an_engine_must_be_left_to_decode() -> None:
    with pytest.raises(CommandError, match=r"--prefill-engines 2 leaves none of 2 engines to decode"):
        plan(ServeOptions("some/model", engines=2, prefill_engines=2), {}, with_encoder=False)
