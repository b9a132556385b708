"""A call with media: its sequences go to the engine while its items are still being encoded, and again if embeddings are lost.

The engine gets the sequences as soon as the encoders know the keys. It computes the text before an item meanwhile, and fetches the
embeddings when they exist. If it cannot fetch them, the items are encoded again and the failed sequences are sent again. A sequence
that has already produced tokens continues after them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from triptych.errors import EmbeddingUnavailableError, InternalError, ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.engines.router import EngineCall, EngineRouter, Listener
from triptych_frontend.errors import client_error, renamed
from triptych_frontend.generation.sequences.continuation import add_output, after_reasoning, of_one
from triptych_frontend.media.item import PreparedMedia
from triptych_frontend.prompt.preprocess import Prompt

log = logging.getLogger(__name__)
#: How often the sequences of a call are sent again in a row, unless all of them get a token in between.
MAX_RESUBMISSIONS = 3
_RETRY_AFTER_S = 1.0
#: The engine's name of an item. In Embed it also names the request, which is the only one of its call.
_ENGINE_FIELD = re.compile(r"(?:requests\[0\]\.)?(media\[(\d+)\])")


class _State(Enum):
    #: The engine has the sequence, but has sent no output yet.
    SUBMITTED = "submitted"
    #: The engine sent tokens, so it had all embeddings.
    STARTED = "started"
    #: The sequence failed because embeddings were missing, and must be sent again.
    LOST = "lost"


class _MediaSequence:
    """One choice in the engine.

    Args:
        request: the request to the engine, without media.
    """

    def __init__(self, index: int, request: engine_pb2.EngineRequest) -> None:
        self.index = index
        #: From the beginning, and since its reasoning was ended.
        self._first = self._request = request
        self._num_submissions = 0
        self.state = _State.SUBMITTED
        #: The call that carries the sequence. One call carries all sequences at first; each resent one has its own.
        self.call: EngineCall | None = None
        self.is_aborted = False
        #: Output tokens of this request so far.
        self.token_ids: list[int] = []
        #: Why the sequence was lost.
        self.error: TriptychError | None = None

    @property
    def can_go_on(self) -> bool:
        """Whether the engine could continue exactly if it gets the output so far as part of the prompt.

        It could not with penalties, which count output tokens, nor with a seed, whose random numbers depend on output positions.
        Constraints and banned sequences begin with the output.
        """
        if not self.token_ids:
            return True
        if self._request.HasField("constraint") or self._request.sampling.bad_token_sequences:
            return False
        sampling = self._request.sampling
        is_greedy = sampling.HasField("temperature") and sampling.temperature == 0
        return not (sampling.presence_penalty or sampling.frequency_penalty or (sampling.HasField("seed") and not is_greedy))

    def abort(self) -> None:
        """End the sequence in the engine. Its last output still arrives."""
        self.is_aborted = True
        if self.call is not None:
            self.call.abort(self.index)

    def next_request(self) -> engine_pb2.EngineRequest:
        """The next request to the engine after a loss, without the media: continues after the output so far."""
        request = engine_pb2.EngineRequest()
        request.CopyFrom(self._request)
        self._num_submissions += 1
        request.request_id += f"-{self._num_submissions}"
        if self.token_ids:
            add_output(request, self.token_ids)
        return request

    def answer(self, token_ids: Sequence[int]) -> None:
        """Make the next request the one for the answer, behind the reasoning, which this output ends."""
        self._request = after_reasoning(self._first, token_ids)
        self.token_ids, self.is_aborted = [], False


@dataclass(eq=False, repr=False)
class MediaCall:
    """The sequences of one call with media. Made by `start`; the caller closes it.

    Args:
        request: the request to the engine, without media.
        listener: receives the sequences' outputs, as in `EngineRouter.start`.
    """

    engine: EngineRouter
    encoders: EncoderClient
    encoding: MediaEncoding
    prompt: Prompt
    request: engine_pb2.EngineRequest
    listener: Listener
    _sequences: list[_MediaSequence] = field(init=False)
    _num_resubmissions: int = field(default=0, init=False)
    _has_lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)
    _is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._sequences = [_MediaSequence(index, of_one(self.request, index)) for index in range(self.request.n or 1)]

    @classmethod
    async def start(
        cls,
        engine: EngineRouter,
        encoders: EncoderClient,
        prompt: Prompt,
        request: engine_pb2.EngineRequest,
        listener: Listener,
        keeps_request: bool = False,
    ) -> MediaCall:
        """Announce the media to their encoders, then send the sequences to the engine.

        Args:
            keeps_request: see `Generator.start`.

        Raises:
            ServiceUnavailableError: no engine or no encoder is available.
            InvalidRequestError: a request is too large for one message.
        """
        encoding = MediaEncoding(encoders, prompt.media, None if keeps_request else prompt.hold)
        try:
            await encoding.announced()
            call = cls(engine, encoders, encoding, prompt, request, listener)
            call._submit_all()
        except BaseException:
            encoding.end()
            raise
        call._keeper = asyncio.create_task(call._keep_encoded(), name="media of a call")
        return call

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        self._sequences[index].abort()

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """See Sequences. Raises what `EngineRouter.start` raises."""
        self._sequences[index].answer(token_ids)
        self._submit_again([self._sequences[index]])

    def close(self) -> None:
        """End everything, in the engine and the encoders, and stop listening. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        for sequence in self._sequences:
            if sequence.call is not None:
                sequence.call.close()
        self.encoding.end()

    def reports(self, last: engine_pb2.SequenceOutput | None) -> list[generation_pb2.MediaReport]:
        """The cost of each item, in their order.

        Args:
            last: the engine's last output of the first choice, which says how the engine got the embeddings; None if there was
                none. Further choices reuse what the first one fetched.
        """
        fetches: Sequence[engine_pb2.MediaFetch] = last.media if last is not None else ()
        reports = []
        for index, item in enumerate(self.prompt.media):
            report = generation_pb2.MediaReport(modality=item.modality, key=item.key, num_tokens=item.expansion.num_embeds)
            encoded = self.encoding.result_of(item.key)
            if encoded is not None:
                report.tier = encoded.result.tier
                report.encode.CopyFrom(encoded.result.timings)
                report.transfer_s = encoded.transfer_s
            if index < len(fetches):
                report.source, report.fetch_s = fetches[index].source, fetches[index].fetch_s
            reports.append(report)
        return reports

    # Called with the engine's outputs, see engines.router.Listener.

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        sequence = self._sequences[index]
        sequence.token_ids += output.token_ids
        if sequence.state is _State.SUBMITTED and (output.token_ids or output.finish_reason):
            sequence.state = _State.STARTED
            if all(one.state is _State.STARTED for one in self._sequences):
                self._num_resubmissions = 0
                self.encoding.settle()
        if any(fetch.source == common_pb2.EMBEDDING_SOURCE_ENCODER for fetch in output.media):
            # This is the sequence's last output. The encoder's reply says what the report needs, and may be behind its embeddings.
            self.encoding.when_told(lambda: self._end(index, output))
        else:
            self.listener.on_output(index, output)

    def _end(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        if not self._is_closed:
            self.listener.on_output(index, output)

    def on_error(self, index: int, error: TriptychError) -> None:
        sequence = self._sequences[index]
        if is_about_embeddings(error) and sequence.can_go_on:
            log.warning("the engine did not get embeddings: %s", error.message)
            sequence.state, sequence.error = _State.LOST, error
            self.encoding.lose()
            self._has_lost.set()
        else:
            if isinstance(error, EmbeddingUnavailableError):
                self.encoders.counts["failed"] += 1
            self._fail(error)

    async def _keep_encoded(self) -> None:
        """Wait for the encoders. Then, whenever the engine could not fetch, encode the items and send the sequences again."""
        try:
            await self.encoding.wait()
            while True:
                await self._has_lost.wait()
                if self._num_resubmissions == MAX_RESUBMISSIONS:
                    self.encoders.counts["failed"] += 1
                    break
                self._num_resubmissions += 1
                await self.encoding.wait()
                self._has_lost.clear()
                self.encoders.counts["resubmitted"] += 1
                self._submit_again([one for one in self._sequences if one.state is _State.LOST])
            self._fail(next(one.error for one in self._sequences if one.state is _State.LOST and one.error is not None))
        except Exception as error:
            self._fail(client_error(error, log))

    def _submit_all(self) -> None:
        call = self.engine.start(self._with_media(self.request), self)
        for sequence in self._sequences:
            sequence.call = call

    def _submit_again(self, sequences: Iterable[_MediaSequence]) -> None:
        for sequence in sequences:
            sequence.state = _State.SUBMITTED
            sequence.call = self.engine.start(self._with_media(sequence.next_request()), self, sequence.index)
            if sequence.is_aborted:
                sequence.abort()

    def _with_media(self, request: engine_pb2.EngineRequest) -> engine_pb2.EngineRequest:
        whole = engine_pb2.EngineRequest(media=self.encoding.refs, placeholders=self.prompt.placeholders)
        whole.MergeFrom(request)
        return whole

    def _fail(self, error: TriptychError) -> None:
        self.close()
        self.listener.on_error(0, in_terms_of_the_request(error, self.prompt.media))


def is_about_embeddings(error: TriptychError) -> bool:
    """Whether the engine lacked embeddings that an encoder may still compute."""
    if isinstance(error, EmbeddingUnavailableError):
        return True
    # The engine may report an encoder's failure before the encoder itself does, while other encoders are still being asked.
    return isinstance(error, InternalError) and _ENGINE_FIELD.match(error.field) is not None


def in_terms_of_the_request(error: TriptychError, media: Sequence[PreparedMedia]) -> TriptychError:
    """The error with the client's name of the item, and with a class that tells the client what to do."""
    found = _ENGINE_FIELD.match(error.field)
    field, message = error.field, error.message
    if found is not None and int(found[2]) < len(media):
        field, message = media[int(found[2])].field, message.removeprefix("requests[0]: ")
        message = message.replace(found[1], field) if found[1] in message else f"{field}: {message}"
    if isinstance(error, EmbeddingUnavailableError):
        return ServiceUnavailableError(message, field=field, limit=error.limit, value=error.value, retry_after_s=_RETRY_AFTER_S)
    return renamed(error, field, message)
