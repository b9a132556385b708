"""Who may do what: keys, rates and the audit log of one gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Literal

from starlette.types import Scope
from triptych_common.host.fair_share import FairShare

from triptych_gateway.access.audit import AuditLog
from triptych_gateway.access.grant import Grant, Places
from triptych_gateway.access.key_ring import NO_KEY, Key, KeyChange, KeyRing, Refusal
from triptych_gateway.access.keys import given_keys
from triptych_gateway.access.rates import MemoryRates, RefusalPace, SharedRates
from triptych_gateway.metrics import Metrics
from triptych_gateway.record import RequestRecord
from triptych_gateway.redaction import redacted
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.wire.errors import AccessDeniedError, ShareExceededError

_MAX_PATH = 200
#: Kinds of lines in the audit log: a request, a turn on a WebSocket, the end of a response that was made in the background.
Event = Literal["request", "turn", "background"]


class AccessControl:
    """Authenticates requests and counts what they use. Call `open` and `close` on the server's event loop.

    Raises:
        StartupError: the file of keys or the audit log cannot be used.
    """

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self._metrics = metrics
        api_key = settings.api_key.get_secret_value() if settings.api_key is not None else None
        #: None: there are no keys, and everybody may do everything.
        self._ring = ring = KeyRing(api_key, settings.api_keys_file) if settings.has_keys else None
        metrics.keys_current.set_function(lambda: ring is None or ring.is_current)
        self._places, self._websocket_places = Places(), Places()
        self._shares: list[FairShare] = []
        self._websockets = self.shares(settings.max_websockets)
        self._refusals = RefusalPace()
        store = settings.rate_limit_store
        self._rates = MemoryRates() if store == "memory" else SharedRates(store, metrics.rate_store_failures.inc)
        self._audit = AuditLog(settings.audit_log, metrics.audit_lost.inc) if settings.audit_log is not None else None
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to watch the file of keys."""
        if self._ring is not None:
            self._watching = asyncio.create_task(
                self._ring.watch(self._note_keys, self._metrics.key_reload_failures.inc), name="api keys"
            )

    async def close(self) -> None:
        """Settle what requests used, and write the end of the audit log."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._rates.close()
        if self._audit is not None:
            await asyncio.to_thread(self._audit.close)

    def authenticate(self, headers: Mapping[str, str], record: RequestRecord, *, for_operators: bool = False) -> Key:
        """The key of a request, noted in its record; NO_KEY if there are no keys.

        Args:
            headers: of HTTP, or the metadata of a gRPC call.

        Raises:
            AccessDeniedError: there is no key, it is not accepted, or it may not use the routes for operators.
        """
        if self._ring is None:
            return NO_KEY
        found: Sequence[Key | Refusal] = [self._ring.find(text) for text in given_keys(headers)]
        key = next((one for one in found if isinstance(one, Key)), None)
        if key is None:
            raise _unauthenticated([one for one in found if not isinstance(one, Key)])
        record.key_id, record.tenant = key.id, key.principal.tenant
        if for_operators and not key.is_operator:
            raise AccessDeniedError(403, "this path is for operators' API keys", "operator", code="permission_denied")
        return key

    async def admit(self, headers: Mapping[str, str], record: RequestRecord, *, for_operators: bool) -> Grant:
        """The permission of a request, for its owner to begin and end. Waits as `pace` says, but not for operators.

        Raises:
            AccessDeniedError: see `authenticate`.
        """
        key = self.authenticate(headers, record, for_operators=for_operators)
        if not for_operators:
            await self.pace(key)
            key = self.renewed(key, record)
        return self.grant(key, record)

    async def pace(self, key: Key) -> None:
        """Wait, if the key was refused very often, and its tenant is not the only one. Hold nothing that others need meanwhile.

        The key may be revoked meanwhile, see `renewed`.
        """
        if self.num_tenants > 1 and self._refusals.delay_s(key.id):
            self._metrics.in_flight.dec()  # autoscalers follow it
            try:
                await self._refusals.wait(key.id)
            finally:
                self._metrics.in_flight.inc()

    def renewed(self, key: Key, record: RequestRecord) -> Key:
        """The key as it is now. It may have been revoked since the request or the connection began: AccessDeniedError."""
        if self._ring is None:
            return key
        now = self._ring.renewed(key)
        if not isinstance(now, Key):
            raise _unauthenticated([now])
        record.key_id, record.tenant = now.id, now.principal.tenant
        return now

    def key_of(self, key_id: str, tenant: str) -> Key | None:
        """The key as it is now, for work that its owner has left to the gateway. None if this gateway has other callers.

        Args:
            tenant: whose data the work is about.

        Raises:
            AccessDeniedError: the key is no longer accepted, or it is another tenant's now.
        """
        if self._ring is None:
            return NO_KEY if key_id == NO_KEY.id else None
        key = self._ring.get(key_id)
        if not isinstance(key, Key):
            raise _unauthenticated([key])
        if key.principal.tenant != tenant:
            raise _unauthenticated(["wrong"])
        return key

    def admit_own(self, key: Key, record: RequestRecord) -> Grant:
        """The permission of a request that the gateway itself makes with a key of `key_of`."""
        record.key_id, record.tenant = key.id, key.principal.tenant
        return self.grant(key, record)

    def grant(self, key: Key, record: RequestRecord) -> Grant:
        """The permission for a request. Its owner begins and ends it."""
        return Grant(key, record, self._rates, self._places)

    def shares(self, capacity: int) -> FairShare:
        """Fair shares of something finite, for as many tenants as there are. Without keys, one tenant gets all of it."""
        shares = FairShare(capacity, self.num_tenants)
        self._shares.append(shares)
        return shares

    @contextmanager
    def websocket(self, key: Key) -> Iterator[None]:
        """Count an open WebSocket while the block runs.

        Raises:
            AccessDeniedError: the key has as many as it may have concurrent requests.
            ShareExceededError: there are too many, or too many of this tenant.
        """
        tenant, shares = key.principal.tenant, self._websockets
        with self._websocket_places.taken(key):
            if not shares.take(tenant):
                used, limit = shares.used_by(tenant), shares.share(tenant)
                message = f"{used} of your WebSockets are open, and {shares.used} of all; try again later"
                raise ShareExceededError("websockets", message, limit=limit, value=used, retry_after_s=10.0)
            try:
                yield
            finally:
                shares.give_back(tenant)

    def ended(self, event: Event, record: RequestRecord, client: str | None, method: str, route: str) -> None:
        """Count what was done for its tenant, and write it to the audit log.

        Args:
            client: its address.
            method: of HTTP; or gRPC.
            route: the path template, or the beginning of the path if that is not known.
        """
        if record.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._refusals.note(record.key_id)
        if event != "background":  # its request is counted already
            self._metrics.tenants.ended(record.tenant, record.refused_resource)
        if self._audit is None:
            return
        usage = record.usage
        self._audit.write(
            event,
            request_id=record.request_id,
            key=record.key_id or None,
            tenant=record.tenant or None,
            client=client,
            method=method,
            route=redacted(route[:_MAX_PATH]),
            model=redacted(record.model) or None,
            status=record.status,
            refused=record.refusal or None,
            aborted=record.is_aborted,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            duration_ms=record.duration_ms,
        )

    @property
    def num_tenants(self) -> int:
        """How many tenants there are."""
        return 1 if self._ring is None else self._ring.num_tenants

    def _note_keys(self, change: KeyChange) -> None:
        for shares in self._shares:
            shares.limit_tenants(self.num_tenants)
        if self._audit is not None:
            self._audit.write("keys", added=change.added, removed=change.removed, changed=change.changed)


def audited(scope: Scope, route: str) -> tuple[str | None, str, str]:
    """What the audit log says of a request: client, method, and route or, if it was refused before that was known, path."""
    client = scope.get("client")
    return client[0] if client else None, scope.get("method", "WEBSOCKET"), route or scope["path"]


def _unauthenticated(refusals: Sequence[Refusal]) -> AccessDeniedError:
    """The same answer for every key that is not accepted, so that it does not tell of a key that once was."""
    if not refusals:
        needed = "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
        return AccessDeniedError(401, needed, "no_key", code="invalid_api_key")
    reason = next((one for one in refusals if one != "wrong"), "wrong")
    return AccessDeniedError(401, "wrong API key, or one that is no longer valid", f"{reason}_key", code="invalid_api_key")
