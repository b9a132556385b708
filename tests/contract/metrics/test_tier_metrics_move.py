"""Each metric of the tiers of the prefix cache that docs/metrics.md names moves as it says, and there are no others."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from support.drivers.engine_service import Served
from support.drivers.kv_transfer import NUM_BLOCKS, SLOT_BYTES, two_engines
from support.metrics import Case, Run, Snapshot, check, documented, documented_with_tier, gauges, run_once, several, snapshot
from triptych_engine.kv_transfer import fetcher

PREFIX = "triptych_engine"


def taken(engine: Served) -> Snapshot:
    return snapshot(engine.metrics.families())


async def blocks_by_grpc() -> Run:
    """What the engine that computes the prompt sees."""
    with mock.patch.object(fetcher, "boot_id", return_value="another host"):
        async with two_engines() as engines:
            before = taken(engines.prefill)
            await engines.go_on(await engines.first_token())
            return Run([before, taken(engines.prefill)])


async def blocks_of_another_engine() -> Run:
    """What the engine that decodes sees: a prompt from the other one, then one of which a block is damaged there."""
    async with two_engines() as engines:
        before = taken(engines.decode)
        await engines.go_on(await engines.first_token())
        other = [1, 2, 3, 4, 5, 6, 7, 8, 9]
        first = await engines.first_token(other)
        newest = next(reversed(engines.prefill_tier._ready.values()))
        engines.prefill_tier.bytes_of(newest)[0][0] ^= 1
        await engines.go_on(first, other)
        return Run([before, taken(engines.decode)])


async def blocks_on_disk() -> Run:
    """A tier of eight slots keeps the rest of a prompt on disk, which comes back from there."""
    with tempfile.TemporaryDirectory() as folder:
        async with two_engines(num_slots=8, folder=Path(folder)) as engines:
            disk, tier = engines.fetcher.disk, engines.decode_tier
            assert disk is not None
            before = taken(engines.decode)
            names = [bytes([number]) * 32 for number in range(10)]
            for name in names:
                slot = tier.reserve(name)
                assert slot is not None
                tier.complete(slot)
            disk._queue.join()
            stored = taken(engines.decode)
            disk.load(names[:1])
            (disk._directory / names[1].hex()).write_bytes(b"cut")
            disk.load(names[1:2])
            with mock.patch("triptych_engine.kv_offload.disk_tier.os.replace", side_effect=OSError(28, "full")):
                slots = [tier.reserve(bytes([number]) * 32) for number in range(90, 94)]
                disk._queue.join()
            for slot in slots:
                assert slot is not None
                tier.abandon(slot)
            return Run([before, stored, taken(engines.decode)])


CASES = [
    *several(
        blocks_by_grpc,
        {
            f"{PREFIX}_offload_stored_blocks": NUM_BLOCKS,
            f"{PREFIX}_kv_held_blocks": NUM_BLOCKS,
            f"{PREFIX}_kv_sent_bytes": NUM_BLOCKS * SLOT_BYTES,
        },
    ),
    *gauges(
        blocks_by_grpc, {f"{PREFIX}_offload_blocks": (0, NUM_BLOCKS), f"{PREFIX}_offload_capacity_blocks": (64, 64)}
    ),
    *several(
        blocks_of_another_engine,
        {
            f"{PREFIX}_offload_loaded_blocks": lambda blocks: blocks >= NUM_BLOCKS,
            f"{PREFIX}_offload_corrupt_blocks": 1,
            f"{PREFIX}_kv_fetch_seconds": 1,
            f"{PREFIX}_kv_fetched_blocks": lambda blocks: blocks >= NUM_BLOCKS,
            f"{PREFIX}_kv_fetched_bytes": lambda size: size >= NUM_BLOCKS * SLOT_BYTES,
        },
    ),
    *several(blocks_of_another_engine, {f"{PREFIX}_kv_fetch_failures": 1}, reason="corrupt"),
    *gauges(blocks_on_disk, {f"{PREFIX}_disk_blocks": (0, 2, lambda blocks: blocks <= 4)}),
    *several(blocks_on_disk, {f"{PREFIX}_disk_block_events": lambda blocks: blocks >= 2}, event="stored"),
    *several(blocks_on_disk, {f"{PREFIX}_disk_block_events": 1}, event="loaded"),
    *several(blocks_on_disk, {f"{PREFIX}_disk_block_events": 1}, event="corrupt"),
    *several(blocks_on_disk, {f"{PREFIX}_disk_block_events": lambda blocks: blocks >= 1}, event="dropped"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_it_moves(case: Case) -> None:
    await check(case, documented_with_tier("engine")[case.metric])


async def test_each_documented_metric_has_a_case_and_no_other_is_exported() -> None:
    assert {case.metric for case in CASES} == documented_with_tier("engine").keys()
    exported = (await run_once(blocks_on_disk)).snapshots[-1].kinds.keys()
    assert {name for name in exported if "offload" in name or "_kv_" in name or "_disk_" in name} - documented(
        "engine"
    ).keys() == documented_with_tier("engine").keys()
