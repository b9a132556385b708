"""What an engine has of its prefix cache outside of the KV cache, and shares with other engines."""

from __future__ import annotations

import asyncio

from triptych.v1 import common_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_common.rpc.security.tls import Tls

from triptych_engine.assembly import new_disk_tier
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.kv_transfer.connection import PeerConnection
from triptych_engine.kv_transfer.fetcher import BlockFetcher
from triptych_engine.kv_transfer.servicer import KvServicer
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.settings import EngineSettings

_ROLES = {"both": common_pb2.KV_ROLE_UNSPECIFIED, "prefill": common_pb2.KV_ROLE_PREFILL, "decode": common_pb2.KV_ROLE_DECODE}


class BlockSharing:
    """The second tier as other engines see it, and where blocks are fetched from that are not in it."""

    def __init__(self, settings: EngineSettings, tls: Tls | None) -> None:
        self._settings, self._tls = settings, tls
        self.servicer = KvServicer()
        self.tier: HostTier | None = None
        #: None if there is neither a disk nor another engine to fetch from.
        self.fetcher: BlockFetcher | None = None
        self._peers: asyncio.Task[None] | None = None

    def attach(self, kv_cache: KVCacheManager, tier: HostTier, model: common_pb2.ModelInfo, layout: str) -> None:
        """Share this tier from now on. The model's description gets the engine's role. Raises StartupError.

        Args:
            layout: what the bytes of a block depend on.
        """
        settings, self.tier = self._settings, tier
        model.capabilities.kv_role = _ROLES[settings.kv_role]
        self.servicer.attach(tier, layout)
        disk, peers = new_disk_tier(settings, layout, tier), None
        if settings.kv_peer_addresses:
            peers = Pool(
                "engine",
                resolver_of(settings.kv_peer_addresses, "engine", model.fingerprint),
                lambda address: PeerConnection(address, model, tls=self._tls),
                tls=self._tls,
            )
            self._peers = asyncio.create_task(peers.run(), name="engines that offer blocks")
        if peers is not None or disk is not None:
            self.fetcher = BlockFetcher(peers, kv_cache, tier, layout, disk)

    async def clear_disk(self) -> None:
        """Remove the blocks on disk."""
        if self.fetcher is not None and self.fetcher.disk is not None:
            await asyncio.to_thread(self.fetcher.disk.clear)

    async def close(self) -> None:
        """Leave the other engines, and write what waits to be written."""
        if self._peers is not None:
            self._peers.cancel()
            await asyncio.gather(self._peers, return_exceptions=True)
        if self.fetcher is not None and self.fetcher.disk is not None:
            await asyncio.to_thread(self.fetcher.disk.close)
