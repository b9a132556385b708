"""EngineService: one token for each step of a sequence, from the script that the prompt's tokens stand for."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from functools import partial

import grpc
from triptych.errors import DuplicateRequestError, InvalidRequestError
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.identity import Identity
from triptych_common.rpc.status import to_request_error

from triptych_mock.pooling import vector
from triptych_mock.rpc.seen import current_call
from triptych_mock.script import answer_tokens, play_fault, script_of
from triptych_mock.vocabulary import Vocabulary, words

Context = grpc.aio.ServicerContext
Output = engine_pb2.SequenceOutput
_BLOCK_SIZE, _NUM_BLOCKS, _MAX_SEQUENCES, _MAX_QUEUED = 16, 4096, 128, 256


class _Live:
    """A request while it is played into a queue: its outputs, an error if it fails, and None at its end."""

    task: asyncio.Task[None]

    def __init__(self, request: engine_pb2.EngineRequest) -> None:
        self.request = request
        self.queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue(_MAX_QUEUED)
        self.has_begun = False
        self.is_aborted = False

    def abort(self) -> None:
        """End it with a last output for each sequence."""
        self.is_aborted = True
        if self.has_begun:  # a task that is cancelled before it runs does nothing at all
            self.task.cancel()

    def leave(self) -> None:
        """End it without outputs: nobody reads them."""
        self.is_aborted = False
        self.task.cancel()


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Reads token ids that Tokenize or Preprocess of the same server gave."""

    def __init__(self, model: common_pb2.ModelInfo, vocabulary: Vocabulary, identity: Identity) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._identity = identity
        self._live: dict[str, _Live] = {}
        self._num_generated = 0
        #: Set, and then replaced, at each change.
        self._load_changed = asyncio.Event()

    def _load(self) -> engine_pb2.Load:
        return engine_pb2.Load(
            num_running=len(self._live),
            num_blocks=_NUM_BLOCKS,
            num_free_blocks=max(0, _NUM_BLOCKS - len(self._live)),
            block_size=_BLOCK_SIZE,
            num_generated_tokens=self._num_generated,
        )

    async def Describe(
        self, request: engine_pb2.EngineServiceDescribeRequest, context: Context
    ) -> engine_pb2.EngineServiceDescribeResponse:
        instance = self._identity.describe(common_pb2.SERVER_STATE_SERVING)
        return engine_pb2.EngineServiceDescribeResponse(instance=instance, model=self._model, load=self._load())

    async def Generate(self, request: engine_pb2.GenerateRequest, context: Context) -> AsyncIterator[engine_pb2.GenerateResponse]:
        seen = current_call.get()
        live = self._start(request.request, seen.num_earlier if seen else 0, context)
        try:
            while (item := await live.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield engine_pb2.GenerateResponse(output=item)
        finally:
            live.leave()

    def _start(self, request: engine_pb2.EngineRequest, num_earlier_calls: int, context: Context | None) -> _Live:
        """Play a request. Raises DuplicateRequestError for an id that is live or empty."""
        name = request.request_id
        if not name or name in self._live:
            raise DuplicateRequestError(f"request_id must be new and not empty; given: {name!r}", field="request_id", value=name)
        live = self._live[name] = _Live(request)
        live.task = asyncio.create_task(self._play(live, num_earlier_calls, context))
        live.task.add_done_callback(lambda _: self._forget(live))
        self._notify()
        return live

    async def _play(self, live: _Live, num_earlier_calls: int, context: Context | None) -> None:
        live.has_begun = True
        try:
            if not live.is_aborted:
                async for output in self._outputs(live.request, num_earlier_calls, context):
                    await live.queue.put(output)
        except asyncio.CancelledError:
            if not live.is_aborted:
                raise
        except Exception as error:
            await live.queue.put(error)
        if live.is_aborted:
            for index in _indices(live.request):
                await live.queue.put(
                    Output(request_id=live.request.request_id, index=index, finish_reason=common_pb2.FINISH_REASON_ABORT)
                )
        self._forget(live)
        await live.queue.put(None)

    def _forget(self, live: _Live) -> None:
        name = live.request.request_id
        if self._live.get(name) is live:
            del self._live[name]
            self._notify()

    async def _outputs(
        self, request: engine_pb2.EngineRequest, num_earlier_calls: int, context: Context | None
    ) -> AsyncIterator[Output]:
        if not request.prompt_token_ids:
            raise InvalidRequestError("prompt_token_ids must not be empty", field="prompt_token_ids", limit=1, value=0)
        if not 0 <= request.n <= _MAX_SEQUENCES:
            raise InvalidRequestError(f"n may be at most {_MAX_SEQUENCES}; given: {request.n}", field="n", limit=_MAX_SEQUENCES)
        script = script_of(self._vocabulary.decode(request.prompt_token_ids, "prompt_token_ids"))
        tokens = answer_tokens(script, words)
        limit = request.sampling.max_tokens if request.sampling.HasField("max_tokens") else len(tokens)
        reason = common_pb2.FINISH_REASON_LENGTH if limit < len(tokens) else common_pb2.FINISH_REASON_STOP
        tokens = tokens[:limit]
        usage = common_pb2.Usage(prompt_tokens=len(request.prompt_token_ids), completion_tokens=len(tokens))
        for number, token in enumerate(tokens or [""]):
            if script.HasField("fault") and number == script.fault.after_tokens:
                await play_fault(script.fault, num_earlier_calls, context)
            await asyncio.sleep(script.token_s if number else script.first_token_s)
            self._num_generated += 1
            for index in range(request.n or 1):
                output = Output(request_id=request.request_id, index=index, token_ids=self._vocabulary.ids(token) if token else ())
                if number >= len(tokens) - 1:
                    output.finish_reason = script.finish_reason or reason
                    output.usage.CopyFrom(usage)
                    output.timings.SetInParent()
                yield output

    def _abort(self, request_id: str) -> bool:
        live = self._live.get(request_id)
        if live is not None:
            live.abort()
        return live is not None

    def _notify(self) -> None:
        self._load_changed.set()
        self._load_changed = asyncio.Event()

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        queue: asyncio.Queue[Output | None] = asyncio.Queue(_MAX_QUEUED)
        own: dict[_Live, asyncio.Task[None]] = {}
        instance = self._identity.describe(common_pb2.SERVER_STATE_SERVING)
        yield engine_pb2.SessionResponse(instance=instance, model=self._model, load=self._load())
        reader = asyncio.create_task(self._read(request_iterator, queue, own))
        step = 0
        try:
            while (output := await queue.get()) is not None:
                step += 1
                yield engine_pb2.SessionResponse(step=step, outputs=[output], load=self._load())
        finally:
            reader.cancel()
            for live in own:
                live.leave()

    async def _read(
        self,
        requests: AsyncIterator[engine_pb2.SessionRequest],
        queue: asyncio.Queue[Output | None],
        own: dict[_Live, asyncio.Task[None]],
    ) -> None:
        """Start and abort requests as a client says.

        Args:
            queue: gets their outputs, and None once the client has closed its side.
            own: the session's live requests, with the tasks that forward their outputs.
        """
        async with asyncio.TaskGroup() as tasks:
            async for message in requests:
                for request in message.add:
                    try:
                        live = self._start(request, 0, None)
                    except DuplicateRequestError as error:
                        await _fail(request, error, queue)
                        continue
                    own[live] = tasks.create_task(_forward(live, queue))
                    own[live].add_done_callback(partial(_remove, own, live))
                for request_id in [*message.abort, *(sequence.request_id for sequence in message.abort_sequences)]:
                    self._abort(request_id)
            # The client has closed its side, which ends its requests without further outputs.
            for live, forwarding in own.items():
                live.leave()
                forwarding.cancel()
        await queue.put(None)

    async def Embed(self, request: engine_pb2.EngineServiceEmbedRequest, context: Context) -> engine_pb2.EngineServiceEmbedResponse:
        response = engine_pb2.EngineServiceEmbedResponse()
        for item in request.requests:
            values = array("f", vector(self._vocabulary.decode(item.prompt_token_ids)))
            response.embeddings.add(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=[len(values)], inline=values.tobytes())
            response.usage.prompt_tokens += len(item.prompt_token_ids)
        return response

    async def Abort(self, request: engine_pb2.AbortRequest, context: Context) -> engine_pb2.AbortResponse:
        return engine_pb2.AbortResponse(aborted_request_ids=[name for name in request.request_ids if self._abort(name)])

    async def WatchBlocks(
        self, request: engine_pb2.WatchBlocksRequest, context: Context
    ) -> AsyncIterator[engine_pb2.WatchBlocksResponse]:
        """It caches nothing."""
        yield engine_pb2.WatchBlocksResponse(sequence=1, is_whole=True)
        await asyncio.Event().wait()

    async def WatchLoad(
        self, request: engine_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[engine_pb2.WatchLoadResponse]:
        interval_s = request.interval_s if request.HasField("interval_s") else 1.0
        while True:
            changed = self._load_changed
            yield engine_pb2.WatchLoadResponse(load=self._load())
            await changed.wait()
            await asyncio.sleep(interval_s)


def _indices(request: engine_pb2.EngineRequest) -> range:
    """The sequences of a request, also of one that asks for more than there may be."""
    return range(min(request.n or 1, _MAX_SEQUENCES))


async def _forward(live: _Live, queue: asyncio.Queue[Output | None]) -> None:
    """The outputs of one request of a session; an error becomes the last output of each of its sequences."""
    while (item := await live.queue.get()) is not None:
        if isinstance(item, Exception):
            await _fail(live.request, item, queue)
        else:
            await queue.put(item)


async def _fail(request: engine_pb2.EngineRequest, error: Exception, queue: asyncio.Queue[Output | None]) -> None:
    for index in _indices(request):
        failed = Output(request_id=request.request_id, index=index, error=to_request_error(error))
        failed.finish_reason = common_pb2.FINISH_REASON_ERROR
        await queue.put(failed)


def _remove(own: dict[_Live, asyncio.Task[None]], live: _Live, task: asyncio.Task[None]) -> None:
    own.pop(live, None)
