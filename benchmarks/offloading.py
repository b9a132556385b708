"""A long conversation that comes back after its blocks were evicted: computed anew, or loaded from the host's memory or from disk.

    python -m benchmarks.offloading
    python -m benchmarks.offloading --prompt 4000 --conversations 4 --rounds 3

The KV cache holds one conversation. All come once, then all come again, each after the others. Measured is the time to the first
token in the engine, without services around it: without a second tier (computed), with one that holds all (memory), and with one
that holds two of them, so that the others are on disk (disk): the one that is loaded, and the one that makes room for it. The files
were written a moment before, so the system may still have them in memory. All first tokens are compared.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from triptych_common.model import store as model_store

from benchmarks.engine.local import EngineCore, EngineSettings, finish  # first: it prepares the environment for torch
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results

from triptych_engine.assembly import (  # isort: skip
    kv_layout,
    make_scheduler,
    new_disk_tier,
    new_executor,
    new_host_memory,
    new_tier,
)
from triptych_engine.kv_transfer.fetcher import BlockFetcher
from triptych_engine.scheduling.request import Request, SamplingParams

TIERS = ("computed", "memory", "disk")
_VOCABULARY = range(1000, 40_000)


class Engine:
    """An engine with one of the tiers.

    Args:
        directory: for files.
    """

    def __init__(self, tier: str, args: argparse.Namespace, directory: Path) -> None:
        path = model_store.resolve_model(args.model, model_store.WEIGHT_PATTERNS)
        model = model_store.model_info(path, model_store.served_name(args.model), None)
        probe = EngineSettings(model=args.model, max_num_seqs=8, kv_cache_memory=1 << 28)
        self.block_size = probe.block_size
        block_bytes = _block_bytes(probe, path)
        of_one = block_bytes * (args.prompt // probe.block_size + 8)
        memory = {"computed": None, "memory": of_one * (args.conversations + 1), "disk": 2 * of_one}[tier]
        settings = probe.model_copy(
            update={
                "kv_cache_memory": of_one,
                "kv_offloading_memory": memory,
                "kv_offloading_dir": directory if tier == "disk" else None,
            }
        )
        host_memory = new_host_memory(settings)
        self.executor = new_executor(settings, model, path, host_memory=host_memory)
        loaded = self.executor.load()
        self._tier, self._blocks = new_tier(host_memory, loaded), None
        self.scheduler = make_scheduler(settings, loaded, model.max_model_len, self._tier)
        if self._tier is not None:
            layout = kv_layout(model, loaded)
            disk = new_disk_tier(settings, layout, self._tier)
            self._blocks = BlockFetcher(None, self.scheduler.kv_cache, self._tier, layout, disk)
        self._core = EngineCore(self.scheduler, self.executor, lambda step, outputs, load: None)
        self._num_requests = 0

    async def first_token(self, prompt: list[int]) -> tuple[float, int, int]:
        """Time to the first token in seconds, the token, and how many tokens of the prompt were not computed."""
        self._num_requests += 1
        request = Request(f"r{self._num_requests}", prompt, SamplingParams(max_tokens=2, temperature=0.0))
        started_s = time.perf_counter()
        if self._blocks is not None and self._blocks.wants(request, ""):
            await self._blocks.fetch(request, "")
        self.scheduler.add(request)
        while not request.num_output_tokens:
            self._core.step()
        ttft_s = time.perf_counter() - started_s
        finish(self._core, self.scheduler)
        return ttft_s, request.token_ids[len(prompt)], request.num_cached_tokens or 0

    def close(self) -> None:
        if self._blocks is not None and self._blocks.disk is not None:
            self._blocks.disk.close()
        self.executor.close()


def _block_bytes(settings: EngineSettings, path: Path) -> int:
    model = model_store.model_info(path, model_store.served_name(settings.model), None)
    executor = new_executor(settings, model, path)
    return sum(executor.load().block_bytes)


async def run(args: argparse.Namespace) -> dict:
    rounds = []
    for number in range(args.rounds):
        one: dict[str, dict] = {}
        for tier in TIERS[number % len(TIERS) :] + TIERS[: number % len(TIERS)]:
            with tempfile.TemporaryDirectory() as folder:
                engine = Engine(tier, args, Path(folder))
                try:
                    one[tier] = await measure(engine, args, seed=number)
                finally:
                    engine.close()
            times = one[tier]["ttft_s"]
            print(f"{tier}: {statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})", flush=True)
            cached = one[tier]["cached_tokens"]
            if tier != "computed" and min(cached) < args.prompt - 2 * engine.block_size:
                print(f"{tier}: not all came back; tokens of each that were not computed: {cached}", flush=True)
        if len({tuple(each["tokens"]) for each in one.values()}) != 1:
            print("the first tokens differ", flush=True)
        rounds.append(one)
    load = {key: getattr(args, key) for key in ("model", "prompt", "conversations", "rounds")}
    return {**describe("offloading"), "load": load, "rounds": rounds}


async def measure(engine: Engine, args: argparse.Namespace, seed: int) -> dict:
    """The first tokens of all conversations when they come again."""
    prompts = [random.Random(100 * seed + number).choices(_VOCABULARY, k=args.prompt) for number in range(args.conversations)]
    for prompt in prompts:
        await engine.first_token(prompt)
    again = [await engine.first_token(prompt) for prompt in prompts]
    return dict(zip(("ttft_s", "tokens", "cached_tokens"), map(list, zip(*again, strict=True)), strict=True))


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=model_store.TEXT_MODEL, help="name or directory")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of a conversation")
    parser.add_argument("--conversations", type=int, default=4, help="at least 4: KV cache and memory hold three")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="offloading")
    args = parser.parse_args()
    check_positive(parser, args.prompt, args.conversations - 3, args.rounds)
    results = asyncio.run(run(args))
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
