"""Finds services by Kubernetes' EndpointSlices: a pod is known the moment it has an address, without a look at a name server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from triptych.errors import StartupError

from triptych_common.cluster.resolver import LastKnown, Update, join

#: All slices are read anew after this time, in seconds: a watch whose connection is dead without an error tells nothing.
RELIST_S = 60
#: Time until the next attempt, in seconds.
RETRY_S = 1.0
#: After an outage the controllers may have to make all slices again, in seconds.
SETTLE_S = 30.0
_SERVICE_LABEL = "kubernetes.io/service-name"


class KubernetesResolver:
    """The addresses of the endpoints of a Service, from the EndpointSlices that the API server has of it.

    The API server and the right to read are those of the pod's service account; elsewhere those of the kubeconfig.

    Args:
        service: name of the Service.
        namespace: its namespace; empty for the one of this pod.
        port: the port for every address.
        client: makes a client of the API server, as lightkube's.
    """

    def __init__(self, service: str, namespace: str, port: int, client: Callable[[], Any] | None = None) -> None:
        self._service, self._namespace, self._port = service, namespace, port
        self._new_client = client or new_client
        self._hint = asyncio.Event()

    async def watch(self, update: Update) -> None:
        known = LastKnown(f"the EndpointSlices of {self._service}", SETTLE_S, update)
        while True:
            try:
                # Each time a new client: the token of a service account expires.
                async with _closing(self._new_client()) as client:
                    while True:
                        await self._follow(client, known)
            except StartupError:
                raise
            except Exception as error:  # the client's errors are many
                known.failed(str(error).partition("\n")[0] or type(error).__name__)
            await asyncio.sleep(RETRY_S)

    def resolve_now(self) -> None:
        self._hint.set()

    async def _follow(self, client: Any, known: LastKnown) -> None:
        """Read all slices, and follow their changes until it is time to read them again."""
        from lightkube.resources.discovery_v1 import EndpointSlice

        self._hint.clear()
        which = {"namespace": self._namespace or None, "labels": {_SERVICE_LABEL: self._service}}
        listing = client.list(EndpointSlice, **which)
        slices = {found.metadata.name: found async for found in listing}
        known.found(addresses_of(slices.values(), self._port))
        changes = client.watch(EndpointSlice, resource_version=listing.resourceVersion, server_timeout=RELIST_S, **which)
        reading = asyncio.create_task(self._apply(changes, slices, known))
        hinted = asyncio.create_task(self._hint.wait())
        try:
            await asyncio.wait({reading, hinted}, timeout=RELIST_S, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            hinted.cancel()
            reading.cancel()
            await asyncio.gather(reading, hinted, return_exceptions=True)
        # Several lost connections cause one reading.
        await asyncio.sleep(RETRY_S if self._hint.is_set() else 0)

    async def _apply(self, changes: Any, slices: dict[str, Any], known: LastKnown) -> None:
        async with aclosing(changes):
            async for kind, changed in changes:
                if kind == "DELETED":
                    slices.pop(changed.metadata.name, None)
                else:
                    slices[changed.metadata.name] = changed
                known.found(addresses_of(slices.values(), self._port))


def addresses_of(slices: Iterable[Any], port: int) -> list[str]:
    """The addresses in the slices of one Service. Of a Service with both families of addresses, those of IPv4.

    A pod that ends and still serves is among them: it says itself that it takes no new requests, and hands over those it has.
    """
    found: dict[str, list[str]] = {"IPv4": [], "IPv6": []}
    for one in slices:
        for endpoint in one.endpoints or ():
            if one.addressType in found and endpoint.addresses and _is_in_use(endpoint.conditions):
                # "Multiple" addresses of an endpoint are deprecated, and stand for the same pod.
                found[one.addressType].append(join(endpoint.addresses[0], port))
    return found["IPv4"] or found["IPv6"]


def _is_in_use(conditions: Any) -> bool:
    """Whether an endpoint is ready, or ends but still serves. What is not said means yes (discovery.k8s.io/v1)."""
    ready = conditions is None or conditions.ready is not False
    return ready or bool(conditions.terminating and conditions.serving)


def new_client() -> Any:
    """A client of the API server. Raises StartupError if its package is missing, or nothing says where the server is."""
    try:
        from lightkube import AsyncClient
        from lightkube.core.exceptions import ConfigError
    except ImportError:
        raise StartupError("targets of Kubernetes need the package lightkube: pip install lightkube") from None
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells of each request
    try:
        return AsyncClient()
    except ConfigError as error:
        raise StartupError(f"targets of Kubernetes need a service account's token or a kubeconfig: {error}") from None


@asynccontextmanager
async def _closing(client: Any) -> AsyncIterator[Any]:
    try:
        yield client
    finally:
        await client.close()
