"""The same workloads on running services: over REST, from the gateway on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean

import httpx
import psutil
from triptych_cli.load.client import run_async

from benchmarks.harness.engines import SAMPLE_S, SETTLE_S, engines_of
from benchmarks.harness.machine import BusyMeter, cpu_s
from benchmarks.harness.stack import Stack
from benchmarks.simulation.figures import Limits, Record, summarize
from benchmarks.simulation.workload import Conversation

#: Of `triptych serve`. Further engines get higher ports. All are below those that the system gives to services at random.
METRICS_FLAGS = ("--engine.metrics-port", "29053")


def _engines(stack: Stack) -> list[psutil.Process]:
    return [process for name, process in stack.services.items() if name.startswith("engine")]


def _metrics_port(engine: psutil.Process) -> int:
    argv = engine.cmdline()
    return int(argv[argv.index("--metrics-port") + 1])


def pin_engines(stack: Stack, num_cores: int) -> None:
    """Give each engine a core: the n-th engine the n-th one, in turn."""
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    for number, engine in enumerate(_engines(stack)):
        for thread in engine.threads():
            with suppress(ProcessLookupError):  # a thread may end meanwhile
                os.sched_setaffinity(thread.id, {cores[number % len(cores)]})


def measure(stack: Stack, conversations: Sequence[Conversation], limits: Limits) -> dict:
    """Let all conversations take place; returns their figures, those of the engines' steps, and the processor time of each kind of
    service."""
    before, cpu_before, steps_before = engines_of(stack), _cpu_by_kind(stack.services), _steps(stack)
    meter = BusyMeter([*stack.services.values(), psutil.Process()])
    records, loads = run_async(_converse(stack, conversations))
    others_percent = meter.percent()["others"]
    time.sleep(SETTLE_S)
    after = engines_of(stack)
    queries, hits, preemptions = (
        sum((engine[name] or 0) for engine in after) - sum((engine[name] or 0) for engine in before)
        for name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
    )
    figures = summarize(records, hits, queries, limits)
    cpu = {kind: seconds - cpu_before[kind] for kind, seconds in _cpu_by_kind(stack.services).items()}
    failures = sorted({one.error for one in records if one.error})[:5]
    largest = max(loads) / fmean(loads) if loads and any(loads) else 1.0
    told = {"cpu_s": cpu, "failures": failures, "others_percent": others_percent}
    steps = {name: count - steps_before[name] for name, count in _steps(stack).items()}
    return figures | steps | {"max_by_mean_load": largest, "num_preemptions": preemptions} | told


def _steps(stack: Stack) -> dict[str, float]:
    """What the engines have counted since their start: steps, their tokens, and their seconds."""
    counts = {"num_steps": "step_seconds_count", "step_tokens": "step_tokens_sum", "step_s": "step_seconds_sum"}
    urls = [f"http://127.0.0.1:{_metrics_port(engine)}/metrics" for engine in _engines(stack)]
    texts = [httpx.get(url, trust_env=False).text for url in urls]
    found = {
        name: [re.search(rf"^triptych_engine_{count} (\S+)$", text, re.MULTILINE) for text in texts]
        for name, count in counts.items()
    }
    return {name: sum(float(one[1]) for one in engines if one) for name, engines in found.items()}


def _cpu_by_kind(services: dict[str, psutil.Process]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name, process in services.items():
        kind = name.partition("-")[0]
        seconds[kind] = seconds.get(kind, 0.0) + cpu_s(process)
    return seconds


async def _converse(stack: Stack, conversations: Sequence[Conversation]) -> tuple[list[Record], list[float]]:
    """What clients saw, and the mean load of each engine."""
    records: list[Record] = []
    loads: dict[str, list[int]] = {}
    async with httpx.AsyncClient(base_url=stack.target.url, timeout=600, limits=httpx.Limits(), trust_env=False) as client:
        start_s = time.perf_counter()

        async def watch() -> None:
            while True:
                await asyncio.sleep(SAMPLE_S)
                for engine in (await client.get("/load")).json()["engines"]:
                    if engine["id"]:
                        loads.setdefault(engine["id"], []).append((engine["num_running"] or 0) + (engine["num_waiting"] or 0))

        async def talk(conversation: Conversation) -> None:
            await asyncio.sleep(max(0.0, conversation.start_s - (time.perf_counter() - start_s)))
            prompt = list(conversation.system)
            for number, turn in enumerate(conversation.turns):
                await asyncio.sleep(turn.pause_s)
                prompt += turn.token_ids
                record = Record(conversation.number, number, time.perf_counter() - start_s, len(prompt))
                records.append(record)
                try:
                    prompt += await _ask(client, stack.target.model, prompt, turn.max_tokens, record, start_s)
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    record.error = f"{type(error).__name__}: {error}"[:200]
                    return

        watching = asyncio.create_task(watch())
        try:
            await asyncio.gather(*map(talk, conversations))
        finally:
            watching.cancel()
            (end,) = await asyncio.gather(watching, return_exceptions=True)
        if isinstance(end, Exception):
            raise end
    return records, [fmean(engine) for engine in loads.values()]


async def _ask(
    client: httpx.AsyncClient, model: str, prompt: list[int], max_tokens: int, record: Record, start_s: float
) -> list[int]:
    """The token ids of one answer, streamed. Raises httpx.HTTPError, or ValueError if it is not whole."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    token_ids: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True, "return_token_ids": True}) as response:
        if response.is_error:
            raise ValueError(f"status {response.status_code}: {(await response.aread())[:150]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise ValueError(f"error event: {event['error']}")
            new = [token_id for choice in event["choices"] for token_id in choice.get("token_ids") or ()]
            if new:
                record.got(time.perf_counter() - start_s, len(new))
                token_ids += new
    if len(token_ids) != max_tokens:
        raise ValueError(f"{len(token_ids)} tokens came instead of {max_tokens}")
    return token_ids
