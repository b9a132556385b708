"""GET /v1/responses as a WebSocket: one turn after the other on one connection.

A client sends `response.create` with the fields of the POST request. It gets the events of the response, one per message.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.status import WS_1008_POLICY_VIOLATION
from starlette.websockets import WebSocket, WebSocketDisconnect
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError
from triptych_common.rpc.interceptors import usable_request_id
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import trace_var

from triptych_gateway.access.control import audited
from triptych_gateway.access.grant import Grant
from triptych_gateway.access.key_ring import Key
from triptych_gateway.apis.calls import check_origin
from triptych_gateway.apis.file_inputs import FileLoader
from triptych_gateway.apis.json_body import check_names, too_many_parts
from triptych_gateway.apis.responses.events import ResponseWriter
from triptych_gateway.apis.responses.schema import ResponseRequest
from triptych_gateway.apis.responses.service import response_call, responses_of
from triptych_gateway.body_budget import MEMORY_FACTOR, BodyHold
from triptych_gateway.file_parts import FileParts
from triptych_gateway.generation.run import Generation
from triptych_gateway.metrics import GenerationMeter
from triptych_gateway.record import RequestRecord
from triptych_gateway.state import Gateway, call_context_of, gateway_of, grant_of
from triptych_gateway.stores.store import ConnectionResponses
from triptych_gateway.tracing import note_error
from triptych_gateway.wire.errors import (
    CLIENT_CLOSED_REQUEST,
    AccessDeniedError,
    ApiError,
    InvalidBodyError,
    refused_resource,
    status_of,
    to_api_error,
)
from triptych_gateway.wire.sse import DONE, data_of, split_events

log = logging.getLogger(__name__)
#: A connection ends after this time, or after the turn that it then works on, in seconds. The specification says 60 minutes.
MAX_CONNECTION_S = 3600.0
#: Messages that wait while a turn is worked on. A client that sends more waits itself.
_MAX_WAITING = 8
#: The client has left.
_GONE = (WebSocketDisconnect, OSError)
#: The name of a turn in traces.
_TURN = "WEBSOCKET /v1/responses"
_LIMIT = ApiError(
    400,
    "this connection has reached its time limit; open another one",
    "invalid_request_error",
    None,
    "websocket_connection_limit_reached",
)


async def serve(websocket: WebSocket) -> None:
    """Serve one connection until the client closes it, its time is over, or the gateway stops."""
    gateway = gateway_of(websocket)
    check_origin(websocket)
    await websocket.accept()
    connection = _Connection(websocket, gateway, grant_of(websocket).key)
    work = asyncio.create_task(connection.work())
    reading = asyncio.create_task(connection.read())
    waited: set[asyncio.Future[Any]] = {work, reading, gateway.stopping}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not reading.done():
            with suppress(Exception):
                await connection.send_error(to_api_error(ServiceUnavailableError("the gateway is stopping")))
    finally:
        work.cancel()
        reading.cancel()
        await asyncio.gather(work, reading, return_exceptions=True)
        connection.close()
        with suppress(Exception):
            await websocket.close()


class _Connection:
    """One connection: reads messages, and answers them in order."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, key: Key) -> None:
        self._websocket, self._gateway, self._key = websocket, gateway, key
        self._tenant = key.principal.tenant
        #: Messages with the memory that is reserved for them, or why there is none.
        self._messages: asyncio.Queue[tuple[str, BodyHold] | QueueFullError] = asyncio.Queue(_MAX_WAITING)
        self._store = ConnectionResponses(gateway.store, gateway.settings.max_stored_response_bytes)

    async def read(self) -> None:
        """Read messages until the client closes the connection."""
        with suppress(WebSocketDisconnect):
            while True:
                await self._gateway.access.pace(self._key)
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await self._put(message.get("text") or "")

    async def _put(self, text: str) -> None:
        # Characters take up to four bytes.
        num_bytes = int(sys.getsizeof(text) * MEMORY_FACTOR)
        try:
            hold = await self._gateway.bodies.taken(self._tenant, num_bytes)
        except QueueFullError as error:
            await self._messages.put(error)
            return
        hold.complete()
        try:
            await self._messages.put((text, hold))
        except BaseException:
            hold.release()
            raise

    def close(self) -> None:
        """Free the memory of the messages that still wait."""
        while not self._messages.empty():
            message = self._messages.get_nowait()
            if not isinstance(message, QueueFullError):
                message[1].release()

    async def work(self) -> None:
        """Answer messages until the connection's time is over, or its key is no longer accepted."""
        ends_s = asyncio.get_running_loop().time() + MAX_CONNECTION_S
        while True:
            try:
                async with asyncio.timeout_at(ends_s):
                    message = await self._messages.get()
            except TimeoutError:
                await self.send_error(_LIMIT)
                return
            request_id_var.set(request_id := usable_request_id(None))
            # The handshake may have named a trace.
            with self._gateway.tracer.request(_TURN, trace_var.get()):
                try:
                    if isinstance(message, QueueFullError):
                        raise message
                    await self._answer(*message, request_id)
                except Exception as error:
                    await self.send_error(self._failed(error, has_status=True))
                    if isinstance(error, AccessDeniedError) and error.status_code == 401:
                        await self._websocket.close(WS_1008_POLICY_VIOLATION, "the API key is no longer valid")
                        return

    def _failed(self, error: Exception, *, has_status: bool) -> ApiError:
        """Count and trace the error that ends a turn. Returns what the client gets."""
        api_error = to_api_error(error)
        note_error(api_error.code or api_error.type, api_error.status)
        if not isinstance(error, _GONE):
            self._gateway.metrics.failed_later(self._websocket.scope["path"], api_error, has_status=has_status)
        return api_error

    async def send_error(self, error: ApiError) -> None:
        """Tell the client of an error that is not part of a response."""
        await self._websocket.send_text(f'{{"type":"error","status":{error.status},{error.body[1:].decode()}')

    async def _answer(self, text: str, hold: BodyHold, request_id: str) -> None:
        """Make one response, and send its events."""
        record = RequestRecord(request_id, status=200)
        try:
            async with self._granted(record) as grant:
                # Files are not cut out of messages: each has the memory and the size of a body.
                files = FileParts(b"", sys.getsizeof(text))
                body, generates = await files.run(lambda: _parsed(text))
                grant.use_model(body.model, ())
                await self._turn(body, generates, files, hold, grant, record)
        except Exception:
            # The connection's copy is dropped, so that the client does not build on it again.
            with suppress(Exception):
                self._store.forget(orjson.loads(text)["previous_response_id"])
            raise
        finally:
            hold.release()

    @asynccontextmanager
    async def _granted(self, record: RequestRecord) -> AsyncIterator[Grant]:
        """The permission for one turn. A turn is a request of its own for rates, metrics of refusals, and the audit log."""
        access, grant = self._gateway.access, None
        try:
            grant = access.grant(access.renewed(self._key, record), record)
            await grant.begin()
            yield grant
        except BaseException as error:
            record.is_aborted = not isinstance(error, Exception) or isinstance(error, _GONE)
            record.status = CLIENT_CLOSED_REQUEST if record.is_aborted else status_of(error)
            record.refusal = error.reason if isinstance(error, AccessDeniedError) else ""
            if isinstance(error, Exception) and not record.is_aborted:
                record.refused_resource = refused_resource(error)
            raise
        finally:
            if grant is not None:
                grant.end()
            route = self._websocket.scope["path"]
            # Without the turns, one that fails would be more failures than requests: the connection counts once, at its end.
            self._gateway.metrics.requests.labels(route, str(record.status)).inc()
            if record.refusal:
                self._gateway.metrics.refused.labels(record.refusal).inc()
            access.ended("turn", record, *audited(self._websocket.scope, route))

    async def _turn(
        self,
        body: ResponseRequest,
        generates: bool,
        files: FileParts,
        hold: BodyHold,
        grant: Grant,
        record: RequestRecord,
    ) -> None:
        gateway, request_id = self._gateway, record.request_id
        # The key may have another tenant than when the connection was opened.
        tenant = grant.key.principal.tenant
        history = responses_of(self._websocket).history
        response_input = await history.begin(tenant, body, files, self._store)
        loader = FileLoader(gateway, tenant, hold.grow)
        call, writer = await response_call(body, response_input, files, request_id, loader, is_streamed=True)
        writer.generates = generates
        if not generates:
            call.calls[0].request.options.sampling.max_tokens = 0
        await grant.admit(call.calls)
        meter = GenerationMeter(gateway.metrics, record, self._websocket.scope["path"])
        generation = Generation(gateway.router.generate(call.calls, call_context_of(tenant), hold.release), call, meter)
        del call  # the router keeps the files until a frontend has answered, and not longer
        await self._send(writer, history.kept_events(generation.events(), response_input, writer))
        if writer.resource["status"] == "failed":
            self._store.forget(body.previous_response_id or "")
        elif not writer.resource["store"]:
            self._store.remember(response_input.record(writer.resource))

    async def _send(self, writer: ResponseWriter, events: Any) -> None:
        """Send the events, one per message. An error after the first event is sent as events, too."""
        is_started = False
        try:
            async with aclosing(events):
                async for written in events:
                    is_started = True
                    await self._send_events(written)
        except _GONE:
            raise
        except Exception as error:
            if not is_started:
                raise
            await self._send_events(writer.failure(self._failed(error, has_status=False)))

    async def _send_events(self, written: bytes) -> None:
        for event in split_events(written):
            if event != DONE:
                await self._websocket.send_text(data_of(event).decode())


def _parsed(text: str) -> tuple[ResponseRequest, bool]:
    """The request in a message, and whether text shall be generated. Raises an error that names what is wrong."""
    if problem := too_many_parts(text):
        raise InvalidRequestError(f"the message has {problem}")
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the message is not valid JSON: {error}") from error
    check_names(text.encode())
    if not isinstance(message, dict) or message.get("type") != "response.create":
        raise InvalidRequestError("type: only messages of type 'response.create' are served", field="type")
    generates = message.pop("generate", None)
    if not isinstance(generates, bool | None):
        raise InvalidRequestError("generate: must be true or false", field="generate")
    for field in ("background", "stream_id"):
        if message.pop(field, None):
            raise InvalidRequestError(f"{field}: not served on a WebSocket", field=field)
    del message["type"]
    try:
        # Events are always streamed here. With `stream`, its options are accepted as in a POST request.
        return ResponseRequest.model_validate(message | {"stream": True}), generates is not False
    except ValidationError as error:
        raise InvalidBodyError(error, message) from error
