"""The encoders that this frontend may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2
from triptych_common.cluster.encoder import EncoderConnection
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_common.rpc.security.tls import Tls


class EncoderPool(Pool[EncoderConnection]):
    """A pool of encoders with the same embeddings.

    Args:
        targets: their addresses, in the form that `resolver_of` takes; empty for a frontend that serves only text.
        expected: the model that this frontend serves.
        on_change: see Pool.
        tls: see Pool.
    """

    def __init__(
        self,
        targets: Sequence[str],
        expected: common_pb2.ModelInfo,
        on_change: Callable[[], Awaitable[None]] | None = None,
        tls: Tls | None = None,
    ) -> None:
        def connect(address: str) -> EncoderConnection:
            return EncoderConnection(address, expected, others=lambda: self.connections, tls=tls)

        super().__init__("encoder", resolver_of(targets, "encoder", expected.fingerprint), connect, on_change, tls)
        self._targets = tuple(targets)

    def embedding_fingerprint(self) -> bytes:
        """What keys depend on in addition to the item. Raises ServiceUnavailableError while no encoder is connected."""
        for encoder in self.connections:
            if encoder.is_connected:
                return encoder.description.embedding_fingerprint
        raise self.none_left()

    async def until_some(self) -> None:
        """Wait a short time for an encoder. Raises ServiceUnavailableError when none becomes ready."""
        if not self._targets:
            raise self.none_left()
        await self.until_ready()

    def none_left(self, what: str = "") -> ServiceUnavailableError:
        if not self._targets:
            return ServiceUnavailableError("media need an encoder, and this frontend was started without one (encoder_addresses)")
        return super().none_left(what)
