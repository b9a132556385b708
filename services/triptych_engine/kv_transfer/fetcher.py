"""Fetches the blocks of a prompt from disk, and from the engine that has computed it, before the prompt is scheduled here.

Blocks arrive in the second tier, and come into the KV cache from there like any that were evicted. Whatever goes wrong is counted,
and the prompt, or the rest of it, is computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import numpy as np
from triptych.v1 import kv_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.telemetry.histogram import SECONDS, Histogram

from triptych_engine.kv_offload.disk_tier import DiskTier
from triptych_engine.kv_offload.host_memory import HostMemory, Slots
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.kv_transfer.connection import PeerConnection
from triptych_engine.kv_transfer.servicer import boot_id
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.request import Request

log = logging.getLogger(__name__)
#: How long the other engine may take for an answer, and between two messages, in seconds.
_ANSWER_S = 5.0
#: How long all of a transfer may take, in seconds.
_TRANSFER_S = 60.0
#: How long a request waits for the connection to an engine that it names, in seconds.
_CONNECT_WAIT_S = 1.0
#: Says that a block is here now, and is to stay until all are.
Keep = Callable[[bytes], bool]
#: Engines on this host whose memory stays mapped.
_MAX_HOSTS = 8
#: Blocks that are copied at once from memory of this host.
_BATCH = 32
#: Of the thread that copies what other engines have computed. Where it has to share a core with steps, it gets a sixteenth of it.
_NICENESS = 12


class TransferError(Exception):
    """Blocks did not arrive. The message is a label of the metric."""


@dataclass
class TransferStatistics:
    """Counts since the start."""

    #: From the request to the last block.
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    num_blocks: int = 0
    num_bytes: int = 0
    #: Why prompts, or the rest of them, are computed although another engine has computed them.
    failures: Counter[str] = field(default_factory=Counter)


class BlockFetcher:
    """Fetches blocks. Used on the event loop.

    Args:
        peers: the only engines that are contacted: no request makes this engine dial an address. None: there are none.
        kv_cache: knows which blocks are here already.
        tier: where blocks arrive.
        layout: what the bytes of a block depend on.
        disk: keeps blocks that the tier has no room for.
    """

    def __init__(
        self,
        peers: Pool[PeerConnection] | None,
        kv_cache: KVCacheManager,
        tier: HostTier,
        layout: str,
        disk: DiskTier | None = None,
    ) -> None:
        self._peers, self._kv_cache, self._tier, self._layout, self.disk = peers, kv_cache, tier, layout, disk
        self.statistics, self._lock = TransferStatistics(), threading.Lock()
        self._fetching: dict[bytes, asyncio.Future[None]] = {}  # the first block that is missing -> its fetch
        self._hosts: dict[tuple[object, ...], Slots] = {}  # memory of other engines on this host that was mapped
        self._thread = ThreadPoolExecutor(1, "kv-transfer", _be_nice)

    def wants(self, request: Request, source: str) -> bool:
        """Whether `fetch` would find anything to do."""
        is_elsewhere = bool(source) and self._peers is not None
        if not is_elsewhere and self.disk is None:
            return False
        hashes = self._kv_cache.prefix_hashes(request)
        missing = hashes[self._kv_cache.held_prefix(hashes) :]
        return bool(missing) and (is_elsewhere or (self.disk is not None and self.disk.holds(missing[0])))

    async def fetch(self, request: Request, source: str) -> None:
        """Fetch what is missing of a request's prefix, before it is scheduled. Never raises, except when it is cancelled.

        Args:
            source: instance id of the engine that offers them; empty: none does.
        """
        hashes = self._kv_cache.prefix_hashes(request)
        if self.disk is not None:
            try:
                await asyncio.to_thread(self.disk.load, hashes, self._kv_cache.held_prefix(hashes))
            except Exception:
                log.exception("unexpected error while blocks were read")
                self._failed("internal")
        if source and self._peers is not None:
            await self._fetch_from(self._peers, hashes, source)

    async def _fetch_from(self, peers: Pool[PeerConnection], hashes: Sequence[bytes], source: str) -> None:
        started_s, num_held = time.perf_counter(), self._kv_cache.held_prefix(hashes)
        missing = hashes[num_held:]
        if missing and missing[0] in self._fetching:  # an equal prompt is on its way
            await asyncio.wait([self._fetching[missing[0]]])
            num_held = self._kv_cache.held_prefix(hashes)
            missing = hashes[num_held:]
        if not missing:
            return
        done = self._fetching[missing[0]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_TRANSFER_S):
                await self._fetch(hashes[:num_held], missing, await self._peer(peers, source))
            self.statistics.seconds.observe(time.perf_counter() - started_s)
        except TransferError as error:
            self._failed(str(error))
        except grpc.aio.AioRpcError as error:
            self._failed(error.code().name.lower(), error.details())
        except TimeoutError:
            self._failed("timeout")
        except Exception:
            log.exception("unexpected error while blocks were fetched")
            self._failed("internal")
        finally:
            self._fetching.pop(missing[0], None)
            done.set_result(None)

    def _failed(self, reason: str, details: str | None = None) -> None:
        self.statistics.failures[reason] += 1
        log.warning("a prompt is computed here: blocks could not be fetched (%s)", details or reason)

    async def _peer(self, peers: Pool[PeerConnection], source: str) -> PeerConnection:
        def find() -> PeerConnection | None:
            return next((peer for peer in peers.connections if peer.instance_id == source), None)

        if find() is None:
            await peers.until(lambda: find() is not None, _CONNECT_WAIT_S)
        if (peer := find()) is None:
            raise TransferError("unknown_source")
        return peer

    async def _fetch(self, prefix: Sequence[bytes], hashes: Sequence[bytes], peer: PeerConnection) -> None:
        request = kv_pb2.HoldRequest(block_hashes=hashes, layout=self._layout)
        with peer.in_use(), self._tier.pinned_chain() as keep:
            for block_hash in prefix:
                keep(block_hash)
            held = await peer.stub.Hold(request, timeout=_ANSWER_S)
            if not held.digests:
                raise TransferError("not_there")
            try:
                if (slots := self._on_this_host(held.host)) is not None:
                    await self._copy(hashes, held, slots, keep)
                else:
                    await self._read(hashes, held, peer, keep)
            finally:
                release = peer.stub.Release(kv_pb2.KvServiceReleaseRequest(lease_id=held.lease_id), timeout=_ANSWER_S)
                asyncio.ensure_future(_ignored(release))  # noqa: RUF006 - it ends by its timeout

    # -- on the same host -------------------------------------------------------------------------------------------------------

    def _on_this_host(self, host: kv_pb2.HostSlots) -> Slots | None:
        """The other engine's slots; None if they are on another host, or cannot be read."""
        if not host.boot_id or host.boot_id != boot_id():
            return None
        identity = host.path, host.device, host.inode, host.size_bytes
        if identity not in self._hosts:
            try:
                with contextlib.closing(HostMemory.open(*identity)) as memory:
                    slots = Slots(memory, self._tier.block_bytes, mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                log.info("the blocks of another engine on this host cannot be read (%s); they come by gRPC", error)
                return None
            if len(self._hosts) >= _MAX_HOSTS:  # those that have ended are among them
                self._hosts.clear()
            self._hosts[identity] = slots
        return self._hosts[identity]

    async def _copy(self, hashes: Sequence[bytes], held: kv_pb2.HoldResponse, source: Slots, keep: Keep) -> None:
        blocks = list(zip(hashes, held.digests, held.host.slots, strict=False))
        for first in range(0, len(blocks), _BATCH):
            await self._on_thread(self._copy_some, blocks[first : first + _BATCH], source, keep)
        if len(blocks) < len(held.digests):
            raise TransferError("cut")

    def _copy_some(self, blocks: Sequence[tuple[bytes, bytes, int]], source: Slots, keep: Keep) -> None:
        for block_hash, digest, slot in blocks:
            self._put(block_hash, digest, source.bytes_of(slot))
            keep(block_hash)

    # -- by gRPC ----------------------------------------------------------------------------------------------------------------

    async def _read(self, hashes: Sequence[bytes], held: kv_pb2.HoldResponse, peer: PeerConnection, keep: Keep) -> None:
        size = sum(self._tier.block_bytes)
        stream = peer.stub.Read(kv_pb2.ReadRequest(lease_id=held.lease_id))
        try:
            number, data, num_blocks = 0, bytearray(), min(len(held.digests), len(hashes))
            async for chunk in _in_time(stream):
                data += chunk.data
                while len(data) >= size and number < num_blocks:
                    await self._on_thread(self._put, hashes[number], held.digests[number], self._split(bytes(data[:size])))
                    keep(hashes[number])
                    del data[:size]
                    number += 1
                if number == num_blocks:
                    return
            raise TransferError("cut")
        finally:
            stream.cancel()

    # -- for both ---------------------------------------------------------------------------------------------------------------

    def _on_thread(self, function: Callable[..., object], *args: object) -> asyncio.Future[object]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _put(self, block_hash: bytes, digest: bytes, parts: Sequence[memoryview]) -> None:
        """Copy a block into the tier, unless it is there. Raises TransferError if there is no room, or it is not intact."""
        if (slot := self._tier.reserve(block_hash)) is None:
            if not self._tier.num_found([block_hash]):
                raise TransferError("no_room")
            return
        try:
            for part, theirs in zip(self._tier.bytes_of(slot), parts, strict=True):
                # Gives up the GIL meanwhile, unlike part[:] = theirs.
                np.copyto(np.frombuffer(part, np.uint8), np.frombuffer(theirs, np.uint8))
        except BaseException:
            self._tier.abandon(slot)
            raise
        if not self._tier.complete(slot, digest):
            raise TransferError("corrupt")
        with self._lock:
            self.statistics.num_blocks += 1
            self.statistics.num_bytes += sum(self._tier.block_bytes)

    def _split(self, data: bytes) -> list[memoryview]:
        """The share of each rank of a block."""
        ends = list(itertools.accumulate(self._tier.block_bytes))
        return [memoryview(data)[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _be_nice() -> None:
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux, a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


async def _in_time(stream: AsyncIterator[kv_pb2.ReadResponse]) -> AsyncIterator[kv_pb2.ReadResponse]:
    """The messages of a stream. Raises TimeoutError if the next one takes too long."""
    messages = aiter(stream)
    while True:
        try:
            async with asyncio.timeout(_ANSWER_S):
                message = await anext(messages)
        except StopAsyncIteration:
            return
        yield message


async def _ignored(call: object) -> None:
    try:
        await call  # type: ignore[misc]
    except grpc.aio.AioRpcError as error:
        log.debug("a lease could not be ended: %s", error.code().name)
