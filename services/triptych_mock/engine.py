"""EngineService: one token for each step of a sequence, from the script that the prompt's tokens stand for."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator

import grpc
from triptych.errors import DuplicateRequestError, InvalidRequestError
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.identity import Identity
from triptych_common.rpc.status import to_request_error

from triptych_mock.pooling import vector
from triptych_mock.script import answer_tokens, play_fault, script_of
from triptych_mock.seen import current_call
from triptych_mock.vocabulary import Vocabulary, words

Context = grpc.aio.ServicerContext
Output = engine_pb2.SequenceOutput
_BLOCK_SIZE, _NUM_BLOCKS, _MAX_SEQUENCES, _MAX_QUEUED = 16, 4096, 128, 256


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Reads token ids that Tokenize or Preprocess of the same server gave."""

    def __init__(self, model: common_pb2.ModelInfo, vocabulary: Vocabulary, identity: Identity) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._identity = identity
        #: Live requests and the tasks that play them.
        self._live: dict[str, asyncio.Task[None]] = {}
        self._num_generated = 0
        self._load_changed = asyncio.Condition()

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
        queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue(_MAX_QUEUED)
        self._start(request.request, queue, seen.num_earlier if seen else 0, context)
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield engine_pb2.GenerateResponse(output=item)
        finally:
            self._cancel(request.request.request_id)

    def _start(
        self,
        request: engine_pb2.EngineRequest,
        queue: asyncio.Queue[Output | Exception | None],
        num_earlier_calls: int,
        context: Context | None,
    ) -> None:
        """Play a request into a queue: its outputs, an error if it fails, and None at its end."""
        name = request.request_id
        if not name or name in self._live:
            raise DuplicateRequestError(f"request_id must be new and not empty; given: {name!r}", field="request_id", value=name)

        async def play() -> None:
            try:
                async for output in self._outputs(request, num_earlier_calls, context):
                    await queue.put(output)
            except asyncio.CancelledError:
                for index in range(request.n or 1):
                    await queue.put(Output(request_id=name, index=index, finish_reason=common_pb2.FINISH_REASON_ABORT))
            except Exception as error:
                await queue.put(error)
            finally:
                del self._live[name]
            await queue.put(None)
            await self._notify()

        self._live[name] = asyncio.create_task(play())

    async def _outputs(
        self, request: engine_pb2.EngineRequest, num_earlier_calls: int, context: Context | None
    ) -> AsyncIterator[Output]:
        await self._notify()
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

    def _cancel(self, request_id: str) -> bool:
        task = self._live.get(request_id)
        if task is not None:
            task.cancel()
        return task is not None

    async def _notify(self) -> None:
        async with self._load_changed:
            self._load_changed.notify_all()

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        queue: asyncio.Queue[Output | None] = asyncio.Queue(_MAX_QUEUED)
        own: set[str] = set()
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
            for request_id in own:
                self._cancel(request_id)

    async def _read(
        self, requests: AsyncIterator[engine_pb2.SessionRequest], queue: asyncio.Queue[Output | None], own: set[str]
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for message in requests:
                for request in message.add:
                    own.add(request.request_id)
                    tasks.create_task(self._forward(request, queue))
                for request_id in [*message.abort, *(sequence.request_id for sequence in message.abort_sequences)]:
                    self._cancel(request_id)
            # The client has closed its side, which aborts its requests.
            for request_id in own:
                self._cancel(request_id)
        await queue.put(None)

    async def _forward(self, request: engine_pb2.EngineRequest, queue: asyncio.Queue[Output | None]) -> None:
        """The outputs of one request of a session; an error becomes the last output of each of its sequences."""
        outputs: asyncio.Queue[Output | Exception | None] = asyncio.Queue(_MAX_QUEUED)
        try:
            self._start(request, outputs, 0, None)
            while (item := await outputs.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                await queue.put(item)
        except Exception as error:
            for index in range(request.n or 1):
                failed = Output(request_id=request.request_id, index=index, error=to_request_error(error))
                failed.finish_reason = common_pb2.FINISH_REASON_ERROR
                await queue.put(failed)

    async def Embed(self, request: engine_pb2.EngineServiceEmbedRequest, context: Context) -> engine_pb2.EngineServiceEmbedResponse:
        response = engine_pb2.EngineServiceEmbedResponse()
        for item in request.requests:
            values = array("f", vector(self._vocabulary.decode(item.prompt_token_ids)))
            response.embeddings.add(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=[len(values)], inline=values.tobytes())
            response.usage.prompt_tokens += len(item.prompt_token_ids)
        return response

    async def Abort(self, request: engine_pb2.AbortRequest, context: Context) -> engine_pb2.AbortResponse:
        return engine_pb2.AbortResponse(aborted_request_ids=[name for name in request.request_ids if self._cancel(name)])

    async def WatchLoad(
        self, request: engine_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[engine_pb2.WatchLoadResponse]:
        interval_s = request.interval_s if request.HasField("interval_s") else 1.0
        while True:
            yield engine_pb2.WatchLoadResponse(load=self._load())
            async with self._load_changed:
                await self._load_changed.wait()
            await asyncio.sleep(interval_s)
