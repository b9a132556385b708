"""Finds services by Kubernetes' EndpointSlices: a pod is known the moment it has an address, without a look at a name server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from triptych.errors import StartupError
from triptych.installation import install_command

from triptych_common.cluster.resolver import LastKnown, Update, join

log = logging.getLogger(__name__)
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
        port: the port of the pods, and not of the Service.
        client: makes a client of the API server, as lightkube's.
    """

    def __init__(self, service: str, namespace: str, port: int, client: Callable[[], Any] | None = None) -> None:
        self._service, self._namespace, self._port = service, namespace, port
        self._new_client = client or new_client
        self._hint = asyncio.Event()
        #: Of the last list.
        self._version = 0

    async def watch(self, update: Update) -> None:
        known = LastKnown(f"the EndpointSlices of {self._service}", SETTLE_S, update)
        while True:
            try:
                # Each time a new client: the token of a service account expires.
                async with _closing(self._new_client()) as client:
                    while True:
                        await self._read(client, known)
            except Exception as error:  # the client's errors are many
                known.failed(str(error).partition("\n")[0] or type(error).__name__)
            await asyncio.sleep(RETRY_S)

    def resolve_now(self) -> None:
        self._hint.set()

    async def _read(self, client: Any, known: LastKnown) -> None:
        """Read all slices, and follow their changes until it is time to read them again. Raises what the client does if they cannot
        be read. A watch may end for many reasons, of which none says that the server is away: proxies cut those that are silent."""
        from lightkube.resources.discovery_v1 import EndpointSlice

        self._hint.clear()
        which = {"namespace": self._namespace or None, "labels": {_SERVICE_LABEL: self._service}}
        listing = client.list(EndpointSlice, **which)
        slices = {found.metadata.name: found async for found in listing}
        version = int(listing.resourceVersion)
        if version < self._version:
            known.restarted()  # of another database
        self._version = version
        known.found(addresses_of(slices.values(), self._port))
        changes = client.watch(EndpointSlice, resource_version=listing.resourceVersion, server_timeout=RELIST_S, **which)
        reading = asyncio.create_task(self._apply(changes, slices, known))
        hinted = asyncio.create_task(self._hint.wait())
        try:
            timeout_s = min(RELIST_S, known.settle_left_s or RELIST_S)
            await asyncio.wait({reading, hinted}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hinted.cancel()
            reading.cancel()
            ended, _ = await asyncio.gather(reading, hinted, return_exceptions=True)
        if isinstance(ended, Exception):
            log.debug("the watch of the EndpointSlices of %s ended: %s", self._service, ended)
        # Several lost connections cause one reading.
        await asyncio.sleep(RETRY_S)

    async def _apply(self, changes: Any, slices: dict[str, Any], known: LastKnown) -> None:
        async with aclosing(changes):
            async for kind, changed in changes:
                if kind == "DELETED":
                    slices.pop(changed.metadata.name, None)
                else:
                    slices[changed.metadata.name] = changed
                known.found(addresses_of(slices.values(), self._port))


def addresses_of(slices: Iterable[Any], port: int) -> list[str]:
    """The addresses in the slices of one Service. Where there are slices of IPv4, they are those of IPv4.

    A pod that ends and still serves is among them: it says itself that it takes no new requests, and hands over those it has.
    """
    slices = list(slices)
    family = "IPv4" if any(one.addressType == "IPv4" for one in slices) else "IPv6"
    endpoints = [endpoint for one in slices if one.addressType == family for endpoint in one.endpoints or ()]
    # Several addresses of an endpoint stand for the same pod.
    return [join(one.addresses[0], port) for one in endpoints if one.addresses and _is_in_use(one.conditions)]


def _is_in_use(conditions: Any) -> bool:
    """Whether an endpoint is ready, or ends but still serves. What is not said means yes (discovery.k8s.io/v1)."""
    ready = conditions is None or conditions.ready is not False
    return ready or bool(conditions.terminating and conditions.serving)


def configuration() -> Any:
    """Where the API server is, and who asks. Raises StartupError if a package is missing, or nothing says it."""
    try:
        from lightkube import KubeConfig
    except ImportError:
        raise StartupError(
            f"targets of Kubernetes need the package lightkube; run: {install_command('triptych-server', 'discovery')}"
        ) from None
    try:
        return KubeConfig.from_env().get()
    except Exception as error:  # a file may also be no YAML, or lack what it should have
        raise StartupError(f"targets of Kubernetes need a service account's token or a kubeconfig: {error}") from None


def new_client() -> Any:
    """A client of the API server. Raises what `configuration` raises."""
    from lightkube import AsyncClient

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells of each request
    return AsyncClient(configuration())


@asynccontextmanager
async def _closing(client: Any) -> AsyncIterator[Any]:
    try:
        yield client
    finally:
        await client.close()
