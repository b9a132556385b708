"""Two engines with the real scheduler and step loop: one computes prompts, the other one goes on with their blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from triptych.v1 import engine_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_engine.kv_offload.disk_tier import DiskTier
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.kv_transfer.connection import PeerConnection
from triptych_engine.kv_transfer.fetcher import BlockFetcher

from support.builders.engine import a_host_tier
from support.drivers.engine_service import MODEL, Served, a_message, alone, an_engine
from support.waiting import until

PROMPT = [(3 * n) % 50 for n in range(90)]  # 22 blocks of four, and two tokens
NUM_BLOCKS = 22
SLOT_BYTES = 1 << 10


@dataclass
class Two:
    """An engine that computes prompts, and one that decodes."""

    prefill: Served
    decode: Served
    prefill_tier: HostTier
    decode_tier: HostTier
    fetcher: BlockFetcher

    async def first_token(self, prompt: list[int] = PROMPT) -> list[int]:
        """Let the first engine compute a prompt."""
        call = self.prefill.stub.Generate(engine_pb2.GenerateRequest(request=a_message("first", prompt, max_tokens=1)))
        return [token_id async for response in call for token_id in response.output.token_ids]

    async def go_on(
        self, token_ids: list[int], prompt: list[int] = PROMPT, source: str = "this engine"
    ) -> engine_pb2.SequenceOutput:
        """Let the second one go on behind these output tokens. Its text is checked."""
        message = a_message("next", [*prompt, *token_ids])
        message.num_output_tokens, message.kv_source = len(token_ids), source
        outputs = [one.output async for one in self.decode.stub.Generate(engine_pb2.GenerateRequest(request=message))]
        text = [token_id for output in outputs for token_id in output.token_ids]
        assert [*token_ids, *text] == alone(prompt)
        return outputs[-1]

    def check_released(self) -> None:
        assert not self.prefill_tier._pins
        assert not self.decode_tier._pins
        self.prefill_tier.check_integrity()
        self.decode_tier.check_integrity()


@asynccontextmanager
async def two_engines(layout: str = "layout", num_slots: int = 64, folder: Path | None = None) -> AsyncIterator[Two]:
    """`folder`: of the second one's blocks on disk; None for none."""
    theirs, ours = a_host_tier(64, SLOT_BYTES), a_host_tier(num_slots, SLOT_BYTES)
    async with an_engine(tier=theirs, offers_prompts=True) as prefill, an_engine(tier=ours) as decode:
        peers = Pool("engine", resolver_of([prefill.address], "engine", ""), lambda address: PeerConnection(address, MODEL))
        running = asyncio.create_task(peers.run())
        try:
            await peers.until_ready()
            disk = None if folder is None else DiskTier(folder, 1 << 30, "0a" * 32, ours)
            fetcher = BlockFetcher(peers, decode.core._scheduler.kv_cache, ours, layout, disk)
            decode.servicer.preparation.blocks = decode.sharing.fetcher = fetcher
            both = Two(prefill, decode, theirs, ours, fetcher)
            yield both
            await until(lambda: not prefill.sharing.servicer._leases)
            both.check_released()
            if disk is not None:
                disk.close()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
