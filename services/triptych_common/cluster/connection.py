"""One supervised connection to one service: it connects, identifies the service, watches it, and reconnects after each loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.errors import InternalError, PermissionDeniedError, TriptychError
from triptych.status import from_rpc_error, has_details
from triptych.v1 import common_pb2

from triptych_common.cluster.breaker import Breaker
from triptych_common.cluster.endpoint import Endpoint
from triptych_common.rpc.channels import is_cancelled, open_channel
from triptych_common.rpc.control import READINESS
from triptych_common.rpc.security.refusal import why_refused
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

log = logging.getLogger(__name__)
#: Pause before a reconnect, in seconds. It doubles from the first value up to the second.
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.2, 2.0


class Carried(Protocol):
    """Work that a connection carries."""

    def lost(self, error: TriptychError) -> None:
        """The service went away."""
        ...


class ConnectionRefusedByUsError(Exception):
    """The service is reachable but is not the expected one, e.g. it serves another model. The message says why."""


class Connection(ABC):
    """A service at one address. Use it on the event loop only.

    A subclass implements one life of the connection in `serve`. The pool runs `run`, which never ends by itself: any failure in one
    life, including an error of our own code, ends that life but not the supervision.

    Args:
        kind: what the service is, for messages: engine, encoder, frontend.
        address: host:port.
        tls: this process's certificate; None for no TLS. The connection keeps the one of its start: the pool replaces it.
    """

    def __init__(self, kind: str, address: str, tls: Tls | None = None) -> None:
        self.kind = kind
        self.address = address
        self._tls = tls
        self.channel = open_channel(address, tls=tls, role=Role(kind))
        #: The connected service instance; None while not connected.
        self.instance: common_pb2.Instance | None = None
        self.model = common_pb2.ModelInfo()
        #: Why the service takes no work; empty while it does.
        self.why_away = "it was not reached yet"
        #: The service finishes its current work and takes no more.
        self.is_going_away = False
        #: Set when the service did not answer a call. The pool prefers all other services until this one identifies itself again.
        self.in_doubt = asyncio.Event()
        #: Opens when the service answers, but fails call after call.
        self.breaker = Breaker()
        #: Set when the first attempt to reach the service has ended, whether it succeeded or failed.
        self.was_tried = asyncio.Event()
        #: Called after each change of a value that the pool chooses by.
        self.on_change: Callable[[], None] = lambda: None
        #: Whether the service itself (not the transport) answered the last attempt. It may be ready at any moment.
        self._is_there = False
        #: Calls in flight that `load` does not count, see `in_use`.
        self.num_other_calls = 0

    @property
    def is_connected(self) -> bool:
        """Whether the service is connected. It may still refuse new work."""
        return self.instance is not None

    @property
    def instance_id(self) -> str:
        """Of the connected service; another one after each start of it. Its address if it has none, empty while not connected."""
        return "" if self.instance is None else self.instance.id or self.address

    @property
    def is_ready(self) -> bool:
        """Whether new work can be sent."""
        return self.instance is not None and not self.is_going_away

    @property
    def is_doubtful(self) -> bool:
        """Whether the pool prefers all other services: this one did not answer a call, or fails call after call."""
        return self.in_doubt.is_set() or not self.breaker.takes_calls

    @property
    def load(self) -> int:
        """Number of requests that the service works on, as far as this process knows."""
        return 0

    @property
    def is_idle(self) -> bool:
        """Whether it carries no work of this process."""
        return not self.load

    @property
    def endpoint(self) -> Endpoint:
        """The current state of the service."""
        instance = self.instance or common_pb2.Instance()
        state = common_pb2.SERVER_STATE_DRAINING if self.is_going_away and self.instance else instance.state
        return Endpoint(self.address, instance.id, instance.address, self.model.name, state, self.load, self.why_away)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Around a call that `load` does not count, so that a renewal of the certificate waits for it.

        Where the service itself is no longer named, nobody waits: such a call is made again elsewhere.
        """
        self.num_other_calls += 1
        try:
            yield
        finally:
            self.num_other_calls -= 1

    async def run(self) -> None:
        """Connect, and reconnect whenever the connection is lost, until cancelled."""
        backoff_s = MIN_BACKOFF_S
        try:
            while True:
                was_connected = await self._live_once()
                if is_cancelled():  # a call that ends in the same instant can hide the cancellation from `_live_once`
                    return
                backoff_s = MIN_BACKOFF_S if was_connected or self._is_there else min(backoff_s * 2, MAX_BACKOFF_S)
                # Jitter prevents many clients from reconnecting at the same instant.
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1))
        finally:
            with contextlib.suppress(Exception):
                await self.channel.close()

    @abstractmethod
    async def serve(self) -> str:
        """One life of the connection. It calls `connected` once the service has identified itself. Returns why it ended.

        Raises:
            grpc.aio.AioRpcError, TriptychError, TimeoutError: the connection was lost or could not be made.
            ConnectionRefusedByUsError: the service is not the expected one.
        """

    async def disconnected(self) -> None:  # noqa: B027 - most subclasses have nothing to clean up
        """Called after a connection was lost, to give up the work that it carried. Does nothing by default."""

    def connected(self, instance: common_pb2.Instance, model: common_pb2.ModelInfo) -> None:
        """The service is connected. Called again when the service reports a new state."""
        is_new = self.instance is None or self.instance.id != instance.id
        self.instance, self.model = instance, model
        self.is_going_away = instance.state == common_pb2.SERVER_STATE_DRAINING
        self.why_away = "it is draining" if self.is_going_away else ""
        self.in_doubt.clear()
        self.was_tried.set()
        if is_new:
            log.info("%s at %s serves %s, context %d", self.kind, self.address, model.name, model.max_model_len)
        self.on_change()

    def tell_lost(self, carried: Iterable[Carried], error: TriptychError) -> None:
        """Tell all that was carried that the service went away. A listener that fails does not keep the others from hearing it."""
        for one in carried:
            try:
                one.lost(error)
            except Exception:
                log.exception("unexpected error of a call that the %s at %s worked on", self.kind, self.address)

    def goes_away(self, why: str = "it is draining") -> None:
        """The service takes no new work on this connection. Its current work may go on."""
        if not self.is_going_away:
            self.is_going_away, self.why_away = True, why
            log.info("%s at %s takes no new work: %s", self.kind, self.address, why)
            self.on_change()

    def doubt(self) -> None:
        """The service did not answer a call: prefer all others until it identifies itself again."""
        if not self.in_doubt.is_set():
            self.in_doubt.set()
            self.on_change()

    async def readiness(self) -> AsyncGenerator[bool, None]:
        """Whether the service is ready, now and after each change. Ends, or raises AioRpcError, when the connection ends."""
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(service=READINESS))
        try:
            async for response in watch:
                yield response.status == health_pb2.HealthCheckResponse.SERVING
        finally:
            watch.cancel()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Around a call whose result the breaker counts."""
        generation = self.breaker.begin()
        try:
            yield
            self.call_succeeded(generation)
        except InternalError as error:
            self.call_failed(generation, error)
            raise
        finally:
            self.breaker.ended(generation)

    def call_succeeded(self, generation: int) -> None:
        """The service answered a call, which began with this generation of the breaker."""
        if self.breaker.succeeded(generation):
            log.info("%s at %s works again", self.kind, self.address)

    def call_failed(self, generation: int, error: TriptychError) -> None:
        """The service failed a call through no fault of the request."""
        if self.breaker.failed(generation):
            log.warning("%s at %s keeps failing (%s); others are used first", self.kind, self.address, error.message)

    def check_fingerprint(self, model: common_pb2.ModelInfo, expected: common_pb2.ModelInfo) -> None:
        """Raise ConnectionRefusedByUsError unless the service has the same model as this one."""
        if model.fingerprint != expected.fingerprint:
            raise ConnectionRefusedByUsError(
                f"it serves another model: {model.name} (fingerprint {model.fingerprint[:12]}), not "
                f"{expected.name} (fingerprint {expected.fingerprint[:12]})"
            )
        # A frontend that has only the tokenizer cannot know the weights.
        ours, theirs = expected.weights_fingerprint, model.weights_fingerprint
        if ours and theirs and ours != theirs:
            raise ConnectionRefusedByUsError(f"it has other weights of {model.name} (fingerprint {theirs[:12]}, not {ours[:12]})")

    async def _live_once(self) -> bool:
        """One life of the connection. Returns True if the service was connected."""
        self._is_there, level = False, logging.INFO
        try:
            why = await self.serve()
        except ConnectionRefusedByUsError as error:
            why, level = str(error), logging.ERROR
        except TimeoutError:
            why = "it did not answer in time"
        except grpc.aio.AioRpcError as error:
            self._is_there = has_details(error)
            why, level = await self._why_failed(error)
        except TriptychError as error:
            why = error.message
        except asyncio.CancelledError:
            await self._lost("this service closed the connection", logging.DEBUG)
            raise
        except Exception as error:
            log.exception("unexpected error of the connection with the %s at %s", self.kind, self.address)
            why = f"an internal error ({type(error).__name__}); the log has the details"
        return await self._lost(why, level)

    async def _why_failed(self, error: grpc.aio.AioRpcError) -> tuple[str, int]:
        """What ended a life, and the level to log it at."""
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return "it did not answer in time", logging.INFO
        # The work of a lost connection must not wait for another handshake.
        if error.code() == grpc.StatusCode.UNAVAILABLE and not self._is_there and not self.is_connected:
            if self._tls is not None and (refusal := await why_refused(self.address, Role(self.kind), self._tls)):
                return refusal, logging.ERROR
            if self._tls is None and "Socket closed" in str(error.details()):
                return f"it closed the connection; it may want TLS (tls_dir): {error.details()}", logging.INFO
        translated = from_rpc_error(error)
        return translated.message, logging.ERROR if isinstance(translated, PermissionDeniedError) else logging.INFO

    async def _lost(self, why: str, level: int) -> bool:
        was_connected, had = self.is_connected, self.why_away
        self.was_tried.set()
        self.instance, self.is_going_away, self.why_away = None, False, why
        if was_connected:
            is_ours = level == logging.DEBUG
            log.log(level if is_ours else max(level, logging.WARNING), "%s at %s went away: %s", self.kind, self.address, why)
        elif why != had:
            # Log once, not at each attempt, and without a warning: services start slowly.
            log.log(level, "%s at %s is away: %s", self.kind, self.address, why)
        if was_connected or why != had:
            self.on_change()  # first, so that the work is not sent to this service again
        try:
            await self.disconnected()
        except Exception:
            log.exception("unexpected error after the %s at %s was lost", self.kind, self.address)
        return was_connected
