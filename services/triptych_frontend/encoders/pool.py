"""The encoders that this frontend may use: which of them are there, and which one an item belongs to."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

import grpc
from triptych_common.pb import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.errors import ServiceUnavailableError
from triptych_common.rpc.status import from_rpc_error

log = logging.getLogger(__name__)
#: Pause before asking again, in seconds; doubles from the first to the last.
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 0.5
_RETRY_AFTER_S = 2.0
_DESCRIBE_TIMEOUT_S = 10.0
#: The same for one that did not answer another call; it is used meanwhile where there is no other.
_DOUBT_TIMEOUT_S = 2.0
#: How long a request waits for an encoder that is starting, or starting again: longer than it takes to notice one that has started,
#: which is the channel's own pause between attempts to connect (channels.py, 2.4 s with its jitter) and one of ours.
_GRACE_S = 4.0


class Encoder:
    """One encoder; usable while `description` is set."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = open_channel(address)
        self.stub = encoder_pb2_grpc.EncoderServiceStub(self.channel)
        self.description: encoder_pb2.DescribeResponse | None = None
        self.why_away = "it did not answer yet"
        #: Set to have it asked again what it serves, though its connection is up.
        self.in_doubt = asyncio.Event()


class EncoderPool:
    """Keeps watch over encoders.

    Args:
        addresses: host:port of each.
        expected: the model that this frontend serves; encoders of another fingerprint are not used.
        on_change: called when one came or went.
    """

    def __init__(
        self, addresses: Sequence[str], expected: common_pb2.ModelInfo, on_change: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._addresses = tuple(addresses)
        self._expected = expected
        self._on_change = on_change
        self._encoders: list[Encoder] = []
        #: Set while an encoder can be used.
        self._has_some = asyncio.Event()

    @property
    def connected(self) -> list[Encoder]:
        """Those that can be used, in the order of their addresses."""
        return [encoder for encoder in self._encoders if encoder.description is not None]

    def key_scope(self) -> bytes:
        """What keys depend on beside the item. Raises ServiceUnavailableError while no encoder is there."""
        for encoder in self._encoders:
            if encoder.description is not None:
                return encoder.description.key_scope
        raise self.none_left()

    async def until_some(self) -> None:
        """Wait a little for an encoder. Raises ServiceUnavailableError when none came."""
        if not self._addresses:
            raise self.none_left()
        try:
            await asyncio.wait_for(self._has_some.wait(), _GRACE_S)
        except TimeoutError:
            raise self.none_left() from None

    def none_left(self) -> ServiceUnavailableError:
        """The error for a request that needs an encoder when there is none."""
        if not self._addresses:
            return ServiceUnavailableError("media need an encoder, and this frontend was started without one (encoder_addresses)")
        away = "; ".join(f"{encoder.address}: {encoder.why_away}" for encoder in self._encoders if encoder.description is None)
        return ServiceUnavailableError(f"no encoder can take this request ({away or 'all failed'})", retry_after_s=_RETRY_AFTER_S)

    def ranked(self, key: bytes) -> list[Encoder]:
        """Usable encoders, the one that the key belongs to first.

        Rendezvous hashing (Thaler and Ravishankar, 1996): when one goes, only its own keys move.
        """

        def rank(one: Encoder) -> tuple[bool, bytes]:
            return not one.in_doubt.is_set(), hashlib.sha256(one.address.encode() + key).digest()

        return sorted(self.connected, key=rank, reverse=True)

    def find(self, address: str) -> Encoder | None:
        """The encoder of an address, whether it can be used or not."""
        return next((encoder for encoder in self._encoders if encoder.address == address), None)

    def doubt(self, encoder: Encoder) -> None:
        """It did not answer a call: use it after all others until it says again what it serves, and not at all when it does not."""
        encoder.in_doubt.set()

    async def run(self) -> None:
        """Watch all encoders until cancelled."""
        self._encoders = [Encoder(address) for address in self._addresses]
        try:
            async with asyncio.TaskGroup() as tasks:
                for encoder in self._encoders:
                    tasks.create_task(self._watch(encoder), name=f"encoder {encoder.address}")
        finally:
            for encoder in self._encoders:
                encoder.description = None
                self._has_some.clear()
                await encoder.channel.close()

    async def _watch(self, encoder: Encoder) -> None:
        backoff_s = _MIN_BACKOFF_S
        while True:
            if await self._describe(encoder):
                encoder.in_doubt.clear()
                backoff_s = _MIN_BACKOFF_S
                # Then whatever ends the connection: it is asked again at once, as another may have started in its place.
                await _until_lost_or_doubted(encoder)
            else:
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1))
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _describe(self, encoder: Encoder) -> bool:
        timeout_s = _DOUBT_TIMEOUT_S if encoder.in_doubt.is_set() else _DESCRIBE_TIMEOUT_S
        try:
            description = await encoder.stub.Describe(encoder_pb2.DescribeRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            is_silent = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            why_away = "it did not answer in time" if is_silent else from_rpc_error(error).message
            await self._set(encoder, None, why_away, logging.INFO)
            return False
        why_not = self._why_not(encoder, description)
        await self._set(encoder, None if why_not else description, why_not, logging.ERROR)
        return not why_not

    def _why_not(self, encoder: Encoder, description: encoder_pb2.DescribeResponse) -> str:
        model, expected = description.model, self._expected
        if model.fingerprint != expected.fingerprint:
            return (
                f"it serves another model: {model.name} (fingerprint {model.fingerprint[:12]}), not {expected.name} "
                f"(fingerprint {expected.fingerprint[:12]})"
            )
        others = [other for other in self.connected if other is not encoder and other.description is not None]
        if any(other.description.key_scope != description.key_scope for other in others if other.description is not None):
            return f"its embeddings differ from those of {others[0].address}: other weights, processor or dtype"
        return ""

    async def _set(self, encoder: Encoder, description: encoder_pb2.DescribeResponse | None, why_away: str, level: int) -> None:
        had, encoder.description = encoder.description, description
        if description is None and (had is not None or why_away != encoder.why_away):
            log.log(logging.WARNING if had is not None else level, "encoder at %s is away: %s", encoder.address, why_away)
        elif description is not None and had is None:
            log.info("encoder at %s serves %s", encoder.address, description.model.name)
        encoder.why_away = why_away
        if self.connected:
            self._has_some.set()
        else:
            self._has_some.clear()
        if (had is None) != (description is None) and self._on_change is not None:
            await self._on_change()


async def _until_lost_or_doubted(encoder: Encoder) -> None:
    """Wait until the connection ends, or somebody got no answer through it."""

    async def lost() -> None:
        state = encoder.channel.get_state()
        while state == grpc.ChannelConnectivity.READY:
            await encoder.channel.wait_for_state_change(state)
            state = encoder.channel.get_state()

    tasks = [asyncio.create_task(lost()), asyncio.create_task(encoder.in_doubt.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
