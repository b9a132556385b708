"""A stand-in for the part of an API server that tells of EndpointSlices: lists and watches over HTTP, and its ways to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


class SliceServer:
    """EndpointSlices of one namespace, by name."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self._version = 1
        self._changed = asyncio.Event()
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        #: Versions before this one are too old to be watched from.
        self._compacted = 0
        self._num_cuts = 0
        self.num_watches = 0
        self.is_up = True
        #: Watches say nothing, as over a connection that is dead.
        self.is_mute = False

    def put(self, name: str, service: str, endpoints: Sequence[dict[str, Any]], family: str = "IPv4") -> None:
        self._version += 1
        metadata = {"name": name, "labels": {"kubernetes.io/service-name": service}, "resourceVersion": str(self._version)}
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = {"metadata": metadata, "addressType": family, "endpoints": list(endpoints)}
        self._tell(kind, self.slices[name])

    def delete(self, name: str) -> None:
        if (found := self.slices.pop(name, None)) is not None:
            self._version += 1
            self._tell("DELETED", {**found, "metadata": {**found["metadata"], "resourceVersion": str(self._version)}})

    def forget(self) -> None:
        """Delete all at once, as by the loss of the database."""
        self.slices, self._events = {}, []
        self._version = self._compacted = self._version + 100
        self.cut()

    def lose(self) -> None:
        """Begin anew with an empty database."""
        self.slices, self._events, self._version, self._compacted = {}, [], 1, 0

    def compact(self) -> None:
        """Forget the events so far."""
        self._events, self._compacted = [], self._version

    def cut(self) -> None:
        """End all watches without a word."""
        self._num_cuts += 1
        self._wake()

    def _tell(self, kind: str, changed: dict[str, Any]) -> None:
        self._events.append((self._version, kind, changed))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.is_up:
            return _json({"kind": "Status", "message": "etcd is away", "code": 503}, status=503)
        service = request.query["labelSelector"].removeprefix("kubernetes.io/service-name=")
        if request.query.get("watch") == "true":
            return await self._watch(request, service)
        items = [one for one in self.slices.values() if one["metadata"]["labels"]["kubernetes.io/service-name"] == service]
        return _json({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, service: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        seen, num_cuts = int(request.query["resourceVersion"]), self._num_cuts
        if seen < self._compacted:
            gone = {"kind": "Status", "code": 410, "message": "too old resource version", "metadata": {}}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        self.num_watches += 1
        try:
            while num_cuts == self._num_cuts and self.is_up:
                changed = self._changed
                for version, kind, one in self._events:
                    if version > seen and not self.is_mute and one["metadata"]["labels"]["kubernetes.io/service-name"] == service:
                        await response.write(json.dumps({"type": kind, "object": one}).encode() + b"\n")
                seen = self._version
                await changed.wait()
        finally:
            self.num_watches -= 1
        if request.transport is not None:
            request.transport.abort()
        return response


def _json(content: Any, status: int = 200) -> web.Response:
    # As an API server sends it, without a charset.
    return web.Response(body=json.dumps(content).encode(), status=status, headers={"Content-Type": "application/json"})


@asynccontextmanager
async def serving_slices() -> AsyncIterator[tuple[SliceServer, str]]:
    """A running stand-in, and its URL."""
    server = SliceServer()
    application = web.Application()
    application.router.add_get(PATH, server.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        server.cut()
        await runner.cleanup()
