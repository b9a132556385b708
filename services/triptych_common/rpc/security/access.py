"""Who may call what: one rule for each method of each service."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from triptych.errors import PermissionDeniedError, StartupError

from triptych_common.rpc.interceptors import wrapped
from triptych_common.rpc.security.roles import Peer, Role, current_peer
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.status import abort_call

log = logging.getLogger(__name__)
#: Refusals that are remembered, so that each is logged once.
_MAX_REMEMBERED = 1024
_FRONTEND = frozenset({Role.GATEWAY, Role.CLIENT, Role.OPERATOR})
_ENCODER = frozenset({Role.FRONTEND, Role.ENGINE})
_ENGINE = frozenset({Role.FRONTEND})
_CONTROL = frozenset({Role.OPERATOR})
_PEOPLE = frozenset({Role.CLIENT, Role.OPERATOR})
#: Any certificate of the authority, also one without a role.
ANYBODY: None = None


def _rules(service: str, roles: frozenset[Role] | None, *methods: str) -> dict[str, frozenset[Role] | None]:
    return {f"/{service}/{method}": roles for method in methods}


#: Method -> the roles that may call it.
RULES: Mapping[str, frozenset[Role] | None] = {
    **_rules("triptych.v1.GenerationService", _FRONTEND, "Chat", "ChatStream", "Complete", "CompleteStream", "Session"),
    **_rules("triptych.v1.GenerationService", _FRONTEND, "UploadMedia", "Embed", "Score", "Classify"),
    **_rules("triptych.v1.GenerationService", _FRONTEND, "ListModels", "Describe", "GetLoad"),
    **_rules("triptych.v1.PreprocessService", _FRONTEND, "Preprocess", "Tokenize"),
    **_rules("triptych.v1.DetokenizeService", _FRONTEND, "Detokenize", "DetokenizeStream"),
    **_rules("triptych.v1.EncoderService", _ENCODER, "Describe", "Encode", "Fetch", "Lookup", "Renew", "Release", "Evict"),
    **_rules("triptych.v1.EncoderService", _ENCODER, "GetStats", "WatchEvictions"),
    **_rules("triptych.v1.EngineService", _ENGINE, "Session", "Generate", "Embed", "Abort", "WatchLoad", "WatchBlocks"),
    **_rules("triptych.v1.EngineService", _ENGINE | {Role.ENGINE}, "Describe"),
    **_rules("triptych.v1.KvService", frozenset({Role.ENGINE}), "Hold", "Read", "Release"),
    # Of a router that does the work of a frontend.
    **_rules(
        "vllm.grpc.engine.VllmEngine", _ENGINE, "Generate", "Embed", "Abort", "GetTokenizer", "SubscribeKvEvents", "FlushCache"
    ),
    **_rules("vllm.grpc.engine.VllmEngine", _ENGINE, "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads"),
    **_rules("vllm.grpc.engine.VllmEngine", _ENGINE, "StartProfile", "StopProfile"),
    **_rules("triptych.v1.ControlService", _CONTROL, "GetServerInfo", "GetModelInfo", "Drain", "ResetCache", "Sleep", "WakeUp"),
    **_rules("triptych.mock.v1.MockService", _FRONTEND, "GetCalls"),
    **_rules("grpc.health.v1.Health", ANYBODY, "Check", "List", "Watch"),
    **_rules("grpc.reflection.v1alpha.ServerReflection", _PEOPLE, "ServerReflectionInfo"),
}


def check_rules(services: Iterable[ServiceDescriptor]) -> None:
    """Raise StartupError unless each method of these services has a rule."""
    for service in services:
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            if name not in RULES:
                raise StartupError(f"no rule says who may call {name[1:]}; {__name__} must have one")


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of roles that have no right to the method, and sets `current_peer` for the others.

    Each refusal is counted. It is logged once for each peer and method.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._logged: set[tuple[str, str]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        return None if handler is None else wrapped(handler, lambda behaviour: self._guarded(behaviour, method))

    def _guarded(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(behaviour):

            async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
                await self._check(method, context)
                async with contextlib.aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

            return stream

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            await self._check(method, context)
            return await behaviour(request, context)

        return call

    async def _check(self, method: str, context: grpc.aio.ServicerContext) -> None:
        """Abort the call unless its peer may make it."""
        self._tls.note_call(context.peer())
        peer = Peer.of(context.auth_context())
        current_peer.set(peer)
        allowed = RULES.get(method, frozenset())
        if allowed is not ANYBODY and not peer.roles & allowed:
            self._tls.num_refused += 1
            self._log(method, peer, context.peer())
            roles = ", ".join(sorted(allowed)) or "nobody"
            message = f"the certificate's role must be one of {roles} to call {method[1:]}; it is {peer}"
            await abort_call(context, PermissionDeniedError(message))

    def _log(self, method: str, peer: Peer, address: str) -> None:
        refusal = method, str(peer)
        if refusal in self._logged:
            return
        if len(self._logged) >= _MAX_REMEMBERED:
            self._logged.clear()
        self._logged.add(refusal)
        log.warning("refused: %s from %s, role %s (logged once)", method[1:], address, peer)
