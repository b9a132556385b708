"""Starts a complete encoder in this process, and calls it over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.media.key import canonical_options, media_key
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.structs import from_struct, to_struct
from triptych_common.rpc.tensors import DTYPE_NAMES
from triptych_encoder.service import EncoderService
from triptych_encoder.settings import EncoderSettings

MODALITIES = {
    "image": common_pb2.MODALITY_IMAGE,
    "audio": common_pb2.MODALITY_AUDIO,
    "video": common_pb2.MODALITY_VIDEO,
}


@dataclass
class RunningEncoder:
    """A running encoder, with a client of it."""

    stub: encoder_pb2_grpc.EncoderServiceStub
    description: encoder_pb2.DescribeResponse
    service: EncoderService

    def item(
        self,
        modality: str,
        data: bytes,
        options: Mapping[str, Any] | None = None,
        tenant_salt: str = "",
        *,
        with_data: bool = True,
    ) -> encoder_pb2.EncodeItem:
        """An item with its correct key. The key is computed from `data`, which is also sent unless `with_data` is False."""
        text = canonical_options(from_struct(to_struct(options or {})))  # as after the transfer: 4.0 becomes 4
        key = media_key(self.description.embedding_fingerprint, MODALITIES[modality], data, text, tenant_salt)
        return encoder_pb2.EncodeItem(
            key=key,
            modality=MODALITIES[modality],
            data=data if with_data else b"",
            processor_options=to_struct(options or {}),
            tenant_salt=tenant_salt,
        )

    async def encode(self, *items: encoder_pb2.EncodeItem, lease_s: float = 30.0, **call: Any) -> list[encoder_pb2.EncodeResult]:
        response = await self.stub.Encode(encoder_pb2.EncodeRequest(items=items, lease_s=lease_s), **call)
        return list(response.results)

    async def fetch(self, key: bytes, **options: Any) -> dict[str, torch.Tensor]:
        """The item's tensors. Raises AssertionError for a violation of the contract, LookupError for an error in the stream."""
        headers: dict[str, common_pb2.Tensor] = {}
        pieces: dict[str, list[bytes]] = {}
        is_over = False
        async for chunk in self.stub.Fetch(encoder_pb2.FetchRequest(keys=[key], **options)):
            assert chunk.key == key
            assert not is_over
            is_over = chunk.last_chunk_of_item
            if chunk.HasField("error"):
                raise LookupError(chunk.error.reason)
            if chunk.HasField("header"):
                assert chunk.tensor_name not in headers
                headers[chunk.tensor_name] = chunk.header
            pieces.setdefault(chunk.tensor_name, []).append(chunk.data)
        assert is_over
        return {name: to_torch(header, b"".join(pieces[name])) for name, header in headers.items()}


def to_torch(header: common_pb2.Tensor, data: bytes) -> torch.Tensor:
    flat = torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
    return flat.view(getattr(torch, DTYPE_NAMES[header.dtype])).reshape(tuple(header.shape))


@asynccontextmanager
async def an_encoder(path: Path, caller: Tls | None = None, **settings: Any) -> AsyncIterator[RunningEncoder]:
    """An encoder of a checkpoint on a free port.

    Args:
        caller: the certificate of its client, with TLS.
        settings: fields of EncoderSettings.
    """
    values = {"host": "127.0.0.1", "port": 0, "model": str(path), "device": "cpu", "niceness": 0, "num_threads": 1, **settings}
    service = EncoderService(EncoderSettings(**values))
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(service.run(stop, ready))
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        async with open_channel(f"127.0.0.1:{service.port}", tls=caller, role=Role.ENCODER) as channel:
            stub = encoder_pb2_grpc.EncoderServiceStub(channel)
            yield RunningEncoder(stub, await stub.Describe(encoder_pb2.DescribeRequest()), service)
    finally:
        waiting.cancel()
        stop.set()
        await running
