"""KvService: what the second tier of this engine holds, for other engines."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from triptych.errors import Code, InvalidRequestError, TriptychError
from triptych.v1 import kv_pb2, kv_pb2_grpc

from triptych_engine.kv_offload.host_tier import HostTier

#: How long blocks are kept for who asked for them, in seconds.
LEASE_S = 20.0
#: Leases at once; of blocks that nobody fetches, the tier would have no room left.
_MAX_LEASES = 1024
_MAX_BLOCKS = 65536
#: Bytes of a message.
_CHUNK_BYTES = 1 << 20


class BlocksNotThereError(TriptychError):
    """This engine does not offer blocks, or not any more."""

    code = Code.NOT_FOUND
    reason = "BLOCKS_NOT_THERE"


class LayoutMismatchError(TriptychError):
    """The blocks of two engines mean different things."""

    code = Code.FAILED_PRECONDITION
    reason = "LAYOUT_MISMATCH"


@dataclass(eq=False, slots=True)
class _Lease:
    slots: list[int]
    ends_s: float
    #: Reads that run.
    num_reads: int = 0
    is_over: bool = False


class KvServicer(kv_pb2_grpc.KvServiceServicer):
    """Serves a tier, once it is attached.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tier: HostTier | None = None
        self._layout = ""
        self._leases: dict[str, _Lease] = {}
        #: Blocks that were held for others, and bytes that were sent to them, since the start.
        self.num_blocks = self.num_bytes = 0

    def attach(self, tier: HostTier, layout: str) -> None:
        """Serve this tier from now on.

        Args:
            layout: what the bytes of its blocks depend on.
        """
        self._tier, self._layout = tier, layout

    async def Hold(self, request: kv_pb2.HoldRequest, context: grpc.aio.ServicerContext) -> kv_pb2.HoldResponse:
        if self._tier is None:
            raise BlocksNotThereError("this engine offers no blocks of its KV cache")
        if request.layout != self._layout:
            raise LayoutMismatchError("the blocks of this engine mean something else to the caller", field="layout")
        if len(request.block_hashes) > _MAX_BLOCKS:
            raise InvalidRequestError("too many blocks", field="block_hashes", limit=_MAX_BLOCKS, value=len(request.block_hashes))
        self.end_old()
        slots = self._tier.pin(request.block_hashes) if len(self._leases) < _MAX_LEASES else []
        if not slots:
            return kv_pb2.HoldResponse()
        lease_id = secrets.token_hex(16)
        self._leases[lease_id] = _Lease(slots, self._clock() + LEASE_S)
        asyncio.get_running_loop().call_later(LEASE_S + 1, self.end_old)
        self.num_blocks += len(slots)
        path, device, inode = self._tier.slots.memory.location
        host = kv_pb2.HostSlots(
            boot_id=boot_id(), path=path, device=device, inode=inode, size_bytes=self._tier.slots.memory.num_bytes, slots=slots
        )
        return kv_pb2.HoldResponse(lease_id=lease_id, lease_s=LEASE_S, digests=map(self._tier.digest, slots), host=host)

    async def Read(self, request: kv_pb2.ReadRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[kv_pb2.ReadResponse]:
        self.end_old()
        lease, tier = self._leases.get(request.lease_id), self._tier
        if lease is None or tier is None:
            raise BlocksNotThereError("the lease has ended")
        lease.num_reads += 1
        try:
            chunk = bytearray()
            for slot in lease.slots[request.first_block :]:
                for part in tier.bytes_of(slot):
                    chunk += part
                    while len(chunk) >= _CHUNK_BYTES:
                        self.num_bytes += _CHUNK_BYTES
                        yield kv_pb2.ReadResponse(data=bytes(chunk[:_CHUNK_BYTES]))
                        del chunk[:_CHUNK_BYTES]
            if chunk:
                self.num_bytes += len(chunk)
                yield kv_pb2.ReadResponse(data=bytes(chunk))
        finally:
            lease.num_reads -= 1
            if lease.is_over and not lease.num_reads:
                tier.unpin(lease.slots)

    async def Release(
        self, request: kv_pb2.KvServiceReleaseRequest, context: grpc.aio.ServicerContext
    ) -> kv_pb2.KvServiceReleaseResponse:
        if (lease := self._leases.pop(request.lease_id, None)) is not None:
            self._end(lease)
        return kv_pb2.KvServiceReleaseResponse()

    def end_old(self) -> None:
        """End leases whose time is over."""
        now_s = self._clock()
        for lease_id, lease in list(self._leases.items()):
            if lease.ends_s <= now_s:
                del self._leases[lease_id]
                self._end(lease)

    def _end(self, lease: _Lease) -> None:
        lease.is_over = True
        if not lease.num_reads and self._tier is not None:
            self._tier.unpin(lease.slots)


def boot_id() -> str:
    """Of the running kernel; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
