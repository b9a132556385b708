"""A call with media: its sequences go to the engine while its items are still being encoded, and again if embeddings are lost.

The engine gets the sequences as soon as the encoders know the keys. It computes the text before an item meanwhile, and fetches the
embeddings when they exist. If it cannot fetch them, the items are encoded again, and the sequences go on behind their output.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from triptych.errors import EmbeddingUnavailableError, InternalError, ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.engines.call import EngineCall
from triptych_frontend.engines.placement import Listener
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.errors import client_error, renamed
from triptych_frontend.media.item import PreparedMedia
from triptych_frontend.prompt.preprocess import Prompt

log = logging.getLogger(__name__)
#: How often the sequences of a call are sent again in a row, unless all of them get a token in between.
MAX_RESUBMISSIONS = 3
_RETRY_AFTER_S = 1.0
#: The engine's name of an item. In Embed it also names the request, which is the only one of its call.
_ENGINE_FIELD = re.compile(r"(?:requests\[0\]\.)?(media\[(\d+)\])")


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
    _call: EngineCall = field(init=False)
    #: Indices of sequences that got no token since they were sent.
    _waiting: set[int] = field(init=False)
    #: Sequences that failed because embeddings were missing, and must be sent again; with the error of each.
    _lost: dict[int, TriptychError] = field(default_factory=dict, init=False)
    _num_resubmissions: int = field(default=0, init=False)
    _has_lost: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)
    _is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._waiting = set(range(self.request.n or 1))
        self.request.placeholders.extend(self.prompt.placeholders)
        self._refer()
        self._call = self.engine.start(self.request, self)

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
        except BaseException:
            encoding.end()
            raise
        call._keeper = asyncio.create_task(call._keep_encoded(), name="media of a call")
        return call

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        self._call.abort(index)

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """See Sequences. Raises what `EngineRouter.start` raises."""
        self._waiting.add(index)
        self._refer()
        self._call.go_on(index, token_ids)

    def close(self) -> None:
        """End everything, in the engine and the encoders, and stop listening. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        self._call.close()
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
            report = generation_pb2.MediaReport(modality=item.modality, key=item.key, num_tokens=item.expansion.num_tokens)
            encoded = self.encoding.result_of(item.key)
            if encoded is not None:
                report.tier = encoded.result.tier
                report.encode.CopyFrom(encoded.result.timings)
                report.transfer_s = encoded.transfer_s
            if index < len(fetches):
                report.source, report.fetch_s = fetches[index].source, fetches[index].fetch_s
            reports.append(report)
        return reports

    # Called with the engine's outputs, see engines.placement.Listener.

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        if index in self._waiting and (output.token_ids or output.finish_reason):
            self._waiting.discard(index)  # the engine had all embeddings
            if not self._waiting:
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
        if is_about_embeddings(error):
            log.warning("the engine did not get embeddings: %s", error.message)
            self._lost[index] = error
            self.encoding.lose()
            self._has_lost.set()
        else:
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
                lost, self._lost = [*self._lost], {}
                self._waiting.update(lost)
                self._refer()
                self._call.resume(lost)
            self._fail(next(iter(self._lost.values())))
        except Exception as error:
            self._fail(client_error(error, log))

    def _refer(self) -> None:
        """Let the request name the places where the embeddings are now."""
        del self.request.media[:]
        self.request.media.extend(self.encoding.refs)

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
