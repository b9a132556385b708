"""An engine without a model: sends the outputs of a script, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import numpy as np
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.tensors import from_numpy

#: The engine's outputs for a request, step by step. A pure function; it sets no request id.
Script = Callable[[engine_pb2.EngineRequest], Sequence[engine_pb2.SequenceOutput]]


def says(token_ids: Sequence[int], *, stop_token_id: int | None = None, tokens_per_step: int = 1, cached_tokens: int = 0) -> Script:
    """A script: these tokens, then the end, either by a stop token (one additional token) or by length."""

    def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        bounded = request.sampling.HasField("max_tokens")
        said = output_of(request)
        # A sequence that goes on says what is left, unless its output is of another script.
        done = len(said) if said == list(token_ids[: len(said)]) else 0
        room = request.sampling.max_tokens - len(said) if bounded else None
        tokens = [*token_ids[done:][:room]]
        if stop_token_id is not None:
            tokens.append(stop_token_id)
        outputs = [
            engine_pb2.SequenceOutput(token_ids=tokens[start : start + tokens_per_step])
            for start in range(0, max(len(tokens), 1), tokens_per_step)
        ]
        last = outputs[-1]
        last.finish_reason = common_pb2.FINISH_REASON_LENGTH if stop_token_id is None else common_pb2.FINISH_REASON_STOP
        if stop_token_id is not None:
            last.stop_token_id = stop_token_id
        last.usage.CopyFrom(_usage(request, len(tokens), cached_tokens))
        last.timings.CopyFrom(_TIMINGS)
        return outputs

    return script


def says_with_logprobs(token_ids: Sequence[int], other: int) -> Script:
    """A script: log probability -i for the i-th token of prompt or output, with one other token as the alternative."""

    def entry(position: int, token_id: int) -> engine_pb2.TokenLogprobs:
        return engine_pb2.TokenLogprobs(
            token_id=token_id, logprob=-position, rank=1, top_token_ids=[token_id, other], top_logprobs=[-position, -9]
        )

    def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        outputs = list(says(token_ids)(request))
        for position, output in enumerate(outputs):
            output.logprobs.append(entry(position, output.token_ids[0]))
        if request.sampling.HasField("prompt_logprobs"):
            prompt = list(enumerate(request.prompt_token_ids))[1:]
            outputs[0].prompt_logprobs.extend(entry(position, token_id) for position, token_id in prompt)
        return outputs

    return script


def thinks(thought: Script, answer: Script, end: Sequence[int]) -> Script:
    """A script: the answer for prompts that end with the tokens `end`, else the thought. Log probabilities are -1."""

    def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        is_answer = list(request.prompt_token_ids)[-len(end) :] == list(end)
        outputs = list((answer if is_answer else thought)(request))
        for output in outputs:
            for token_id in output.token_ids if request.sampling.HasField("logprobs") else ():
                output.logprobs.add(token_id=token_id, logprob=-1, rank=1)
        if is_answer:
            outputs[-1].usage.cached_tokens = len(request.prompt_token_ids)
        return outputs

    return script


def fails(error: common_pb2.RequestError) -> Script:
    """A script: refuses the request."""
    return lambda request: [engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)]


_TIMINGS = common_pb2.Timings(queue_s=0.125, prefill_s=0.25, decode_s=0.5)


def output_of(request: engine_pb2.EngineRequest) -> list[int]:
    """The output that a sequence begins with, which another engine computed."""
    return list(request.prompt_token_ids)[len(request.prompt_token_ids) - request.num_output_tokens :]


def _usage(request: engine_pb2.EngineRequest, num_tokens: int, cached_tokens: int = 0) -> common_pb2.Usage:
    carried = request.num_output_tokens
    prompt_tokens = len(request.prompt_token_ids) - carried
    return common_pb2.Usage(prompt_tokens=prompt_tokens, completion_tokens=num_tokens + carried, cached_tokens=cached_tokens)


class FakeSequence:
    """A sequence of a request, and its remaining outputs."""

    def __init__(self, request: engine_pb2.EngineRequest, outputs: Sequence[engine_pb2.SequenceOutput], index: int = 0) -> None:
        self.request = request
        self.index = index
        self.outputs = list(outputs)
        self.num_tokens = 0
        self.is_aborted = False
        #: The session that the request came on.
        self.session: object = None


def step(live: dict[tuple[str, int], FakeSequence]) -> engine_pb2.SessionResponse:
    """One engine step: the next output of each live sequence, and the last of each aborted one. Removes sequences that ended."""
    response = engine_pb2.SessionResponse()
    for (request_id, index), sequence in list(live.items()):
        if sequence.is_aborted:
            output = engine_pb2.SequenceOutput(
                finish_reason=common_pb2.FINISH_REASON_ABORT,
                usage=_usage(sequence.request, sequence.num_tokens),
                timings=_TIMINGS,
            )
        elif sequence.outputs:
            output = sequence.outputs.pop(0)
            sequence.num_tokens += len(output.token_ids)
        else:
            continue  # a script without an end: the sequence stays live until it is aborted
        output.request_id, output.index = request_id, index
        response.outputs.append(output)
        if output.finish_reason:
            del live[request_id, index]
    return response


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Serves `Session` and `Embed`. Runs a step whenever this is allowed.

    Args:
        model: the model that it reports.
        script: the outputs for each request.
    """

    def __init__(self, model: common_pb2.ModelInfo, script: Script) -> None:
        self.model = common_pb2.ModelInfo()
        self.model.CopyFrom(model)
        self.model.capabilities.continuation = True
        self.script = script
        #: Requests in the order of arrival, and the messages that contained them.
        self.requests: list[engine_pb2.EngineRequest] = []
        self.messages: list[engine_pb2.SessionRequest] = []
        self.aborted: list[str] = []
        self.aborted_sequences: list[tuple[str, int]] = []
        self.instance = common_pb2.Instance(id=f"engine {id(self)}", state=common_pb2.SERVER_STATE_SERVING)
        #: Told with each step, if set.
        self.load: engine_pb2.Load | None = None
        #: Sessions that were refused while it was down.
        self.num_refused = 0
        self.live: dict[tuple[str, int], FakeSequence] = {}
        #: Calls of Embed in the order of arrival; and what each waits for.
        self.embeds: list[engine_pb2.EngineServiceEmbedRequest] = []
        self.embed_gate: asyncio.Semaphore | None = None
        self._steps_allowed: int | None = None
        self._changed = asyncio.Condition()
        self._down = False
        self._num_announcements = 0

    def register(self, server: grpc.aio.Server) -> None:
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)

    async def pause(self, after_steps: int = 0) -> None:
        """Run this many more steps, then wait for `resume`."""
        async with self._changed:
            self._steps_allowed = after_steps
            self._changed.notify_all()

    async def resume(self) -> None:
        async with self._changed:
            self._steps_allowed = None
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true, e.g. after an abort has arrived."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def go_down(self) -> None:
        """End all sessions, and refuse new ones until `come_back`."""
        async with self._changed:
            self._down = True
            self._changed.notify_all()

    async def announce_going_away(self) -> None:
        """Tell all sessions to send their requests elsewhere."""
        async with self._changed:
            self._num_announcements += 1
            self._changed.notify_all()

    async def come_back(self) -> None:
        async with self._changed:
            self._down = False

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        async with self._changed:
            self.num_refused += self._down
            self._changed.notify_all()
        self._refuse_when_down()
        session = object()
        reader = asyncio.create_task(self._read(request_iterator, session))
        try:
            yield engine_pb2.SessionResponse(instance=self.instance, model=self.model)
            num_announced = self._num_announcements
            while True:
                async with self._changed:
                    await self._changed.wait_for(
                        lambda seen=num_announced: self._may_step(session) or self._num_announcements > seen
                    )
                    self._refuse_when_down()
                    if self._num_announcements > num_announced:
                        num_announced = self._num_announcements
                        yield engine_pb2.SessionResponse(going_away=True)
                        continue
                    own = self._live_of(session)
                    response = step(own)
                    self.live = {key: one for key, one in self.live.items() if one.session is not session or key in own}
                    if self.load is not None:
                        response.load.CopyFrom(self.load)
                    if self._steps_allowed is not None:
                        self._steps_allowed -= 1
                    self._changed.notify_all()
                yield response
        finally:
            reader.cancel()
            for key in self._live_of(session):
                del self.live[key]

    async def Embed(
        self, request: engine_pb2.EngineServiceEmbedRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.EngineServiceEmbedResponse:
        """For each request a vector with the sum and the number of its tokens and 30 zeros; per token, one with its id."""
        self._refuse_when_down()
        self.embeds.append(request)
        if self.embed_gate is not None:
            await self.embed_gate.acquire()
        answer = engine_pb2.EngineServiceEmbedResponse()
        for one in request.requests:
            ids = np.array(one.prompt_token_ids, np.float32)
            if request.pooling.task == common_pb2.TASK_TOKEN_EMBED:
                values = np.pad(ids[:, None], ((0, 0), (0, 31)))
            elif request.pooling.task in (common_pb2.TASK_CLASSIFY, common_pb2.TASK_SCORE):
                values = ids[-1:]
            else:
                values = np.pad(np.array([ids.sum(), len(ids)], np.float32), (0, 30))
            answer.embeddings.append(from_numpy(values))
            answer.usage.prompt_tokens += len(ids)
        return answer

    async def WatchBlocks(
        self, request: engine_pb2.WatchBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.WatchBlocksResponse]:
        """It caches nothing."""
        yield engine_pb2.WatchBlocksResponse(sequence=1, is_whole=True)
        await asyncio.Event().wait()

    async def WatchLoad(
        self, request: engine_pb2.WatchLoadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.WatchLoadResponse]:
        """Its sessions tell it."""
        await asyncio.Event().wait()
        yield engine_pb2.WatchLoadResponse()

    def _live_of(self, session: object) -> dict[tuple[str, int], FakeSequence]:
        return {key: sequence for key, sequence in self.live.items() if sequence.session is session}

    async def _read(self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], session: object) -> None:
        async for message in request_iterator:
            async with self._changed:
                self.messages.append(message)
                for request in message.add:
                    self.requests.append(request)
                    for index in range(request.n or 1):
                        sequence = self.live[request.request_id, index] = self._begin(request, index)
                        sequence.session = session
                self.aborted += message.abort
                self.aborted_sequences += [(one.request_id, one.index) for one in message.abort_sequences]
                for (request_id, index), sequence in self.live.items():
                    if request_id in message.abort or (request_id, index) in self.aborted_sequences:
                        sequence.is_aborted = True
                self._changed.notify_all()

    def _begin(self, request: engine_pb2.EngineRequest, index: int) -> FakeSequence:
        return FakeSequence(request, self.script(request), index)

    def _may_step(self, session: object) -> bool:
        if self._down:
            return True
        # Aborts take effect during a pause too: a pause represents a long step of other requests.
        has_work = any(sequence.outputs or sequence.is_aborted for sequence in self._live_of(session).values())
        return has_work and (self._steps_allowed is None or self._steps_allowed > 0)

    def _refuse_when_down(self) -> None:
        if self._down:
            raise ServiceUnavailableError("the fake engine is down")
