"""A call with media: its items are encoded while its sequences are in the engine already, and made again when they are lost.

The engine gets the sequences as soon as the encoders know the keys. It computes the text before an item, and fetches the embeddings
when they are there. What goes wrong on the way is put right here, a bounded number of times, or ends this call alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

from triptych_common.pb import engine_pb2, generation_pb2
from triptych_common.rpc.errors import EmbeddingUnavailableError, InternalError, ServiceUnavailableError, TriptychError

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import EncodedItem, MediaEncoding
from triptych_frontend.engines.router import EngineCall, EngineRouter, Listener
from triptych_frontend.generation.sampling import seed_of_choice
from triptych_frontend.prompt.preprocess import Prompt

log = logging.getLogger(__name__)
#: How often sequences whose embeddings were lost are handed to the engine again.
_MAX_RESUBMISSIONS = 3
_RETRY_AFTER_S = 1.0
#: How the engine names an item.
_ENGINE_FIELD = re.compile(r"media\[(\d+)\]")


class _MediaSequence:
    """One choice in the engine; it may be handed over more than once until its first token."""

    def __init__(self, owner: MediaCall, index: int, request: engine_pb2.EngineRequest) -> None:
        self._owner = owner
        self.index = index
        self.request = request
        self.call: EngineCall | None = None
        #: Whether the engine brought tokens, and so had all embeddings.
        self.has_started = False

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        self._owner.on_sequence_output(self, output)

    def on_error(self, index: int, error: TriptychError) -> None:
        self._owner.on_sequence_error(self, error)


class MediaCall:
    """The sequences of one call with media. Made by `start`; whoever made it closes it.

    Args:
        request: to the engine, without media.
        listener: hears of the sequences, as in `EngineClient.start`.
    """

    def __init__(
        self,
        engine: EngineRouter,
        encoders: EncoderClient,
        encoding: MediaEncoding,
        prompt: Prompt,
        request: engine_pb2.EngineRequest,
        listener: Listener,
    ) -> None:
        self._engine = engine
        self._encoders = encoders
        self._encoding = encoding
        self._prompt = prompt
        #: Where each item stands in the client's request.
        self._fields = [item.field for item in prompt.media]
        self._listener = listener
        self._sequences = [_MediaSequence(self, index, _of_one(request, index)) for index in range(request.n or 1)]
        self._num_unstarted = len(self._sequences)
        #: Sequences that ended without their embeddings, and are to be handed over again -> why
        self._lost: dict[_MediaSequence, TriptychError] = {}
        self._has_lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_closed = False

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
        """Announce the media to their encoders, then hand the sequences to the engine.

        Args:
            keeps_request: see `Generator.start`.

        Raises:
            ServiceUnavailableError: engine or encoders are away.
            InvalidRequestError: a request is too large for one message.
        """
        encoding = encoders.begin(prompt.media) if keeps_request else encoders.begin(prompt.media, prompt.release)
        try:
            await encoding.announced()
            call = cls(engine, encoders, encoding, prompt, request, listener)
            call._submit(call._sequences)
        except BaseException:
            encoding.end()
            raise
        call._keeper = asyncio.create_task(call._keep_encoded(), name="media of a call")
        return call

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still comes."""
        call = self._sequences[index].call
        if call is not None:
            call.abort(0)

    def close(self) -> None:
        """End everything, in engine and encoders, and listen no more. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        for sequence in self._sequences:
            if sequence.call is not None:
                sequence.call.close()
        self._encoding.end()

    def reports(self, last: engine_pb2.SequenceOutput | None) -> list[generation_pb2.MediaReport]:
        """What each item cost.

        Args:
            last: the engine's last words on the first choice; further choices find what that one fetched.
        """
        fetches: Sequence[engine_pb2.MediaFetch] = last.media if last is not None else ()
        reports = []
        for index, item in enumerate(self._prompt.media):
            report = generation_pb2.MediaReport(modality=item.modality, key=item.key, num_tokens=item.expansion.num_embeds)
            _add_encoding(report, self._encoding.result_of(item.key))
            if index < len(fetches):
                report.source, report.fetch_s = fetches[index].source, fetches[index].fetch_s
            reports.append(report)
        return reports

    # What the sequences hear of the engine.

    def on_sequence_output(self, sequence: _MediaSequence, output: engine_pb2.SequenceOutput) -> None:
        if not sequence.has_started and (output.token_ids or output.finish_reason):
            sequence.has_started = True
            self._num_unstarted -= 1
            if not self._num_unstarted:
                # No sequence can lose its embeddings any more.
                if self._keeper is not None:
                    self._keeper.cancel()
                self._encoding.settle()
        self._listener.on_output(sequence.index, output)

    def on_sequence_error(self, sequence: _MediaSequence, error: TriptychError) -> None:
        if _can_be_put_right(error) and not sequence.has_started:
            log.warning("the engine did not get embeddings: %s", error.message)
            self._lost[sequence] = error
            self._has_lost.set()
        else:
            if isinstance(error, EmbeddingUnavailableError):
                # It was preempted after its first token, and its embeddings are gone by now, as are the files.
                self._encoders.counts["failed"] += 1
            self._fail(error)

    # The ladder.

    async def _keep_encoded(self) -> None:
        """Wait for the encoders; then, as often as the engine did not get what it asked for, have it made again."""
        try:
            await self._encoding.wait()
            for _ in range(_MAX_RESUBMISSIONS):
                if not self._lost:
                    await self._has_lost.wait()
                    await self._encoding.again()
                # Else it asked in vain while the items were being encoded, which by now they are.
                lost, self._lost = self._lost, {}
                self._has_lost.clear()
                self._encoders.counts["resubmitted"] += 1
                self._submit(list(lost))
            await self._has_lost.wait()
            self._encoders.counts["failed"] += 1
            raise next(iter(self._lost.values()))
        except TriptychError as error:
            self._fail(error)
        except Exception as error:
            log.exception("unexpected error")
            self._fail(InternalError(f"internal error ({type(error).__name__}); the service's log has the details"))

    def _submit(self, sequences: Sequence[_MediaSequence]) -> None:
        refs = self._encoding.refs
        for sequence in sequences:
            request = engine_pb2.EngineRequest(media=refs, placeholders=self._prompt.placeholders)
            request.MergeFrom(sequence.request)
            # One call for each, as each may be lost, and handed over again, alone. They travel in one message all the same.
            sequence.call = self._engine.start(request, sequence)

    def _fail(self, error: TriptychError) -> None:
        self.close()
        self._listener.on_error(0, self._in_terms_of_the_request(error))

    def _in_terms_of_the_request(self, error: TriptychError) -> TriptychError:
        """The error with the engine's name of an item replaced by the client's, and of a class that tells the client what to do."""
        found = _ENGINE_FIELD.match(error.field)
        field, message = error.field, error.message
        if found is not None and int(found[1]) < len(self._fields):
            field = self._fields[int(found[1])]
            message = message.replace(found[0], field) if found[0] in message else f"{field}: {message}"
        kind, retry_after_s = type(error), error.retry_after_s
        if isinstance(error, EmbeddingUnavailableError):
            kind, retry_after_s = ServiceUnavailableError, _RETRY_AFTER_S
        return kind(message, field=field, limit=error.limit, value=error.value, retry_after_s=retry_after_s)


def _of_one(request: engine_pb2.EngineRequest, index: int) -> engine_pb2.EngineRequest:
    """The request for one of its sequences alone, which the engine would have numbered so."""
    one = engine_pb2.EngineRequest()
    one.CopyFrom(request)
    one.request_id, one.n = f"{request.request_id}-{index}", 1
    if one.sampling.HasField("seed"):
        one.sampling.seed = seed_of_choice(request.sampling.seed, index)
    return one


def _can_be_put_right(error: TriptychError) -> bool:
    """Whether another encoder, or the same once more, may do what the engine's error says went wrong with an item."""
    if isinstance(error, EmbeddingUnavailableError):
        return True
    # An encoder's failure can come by way of the engine before it comes from the encoder, and the ladder goes on meanwhile.
    return isinstance(error, InternalError) and _ENGINE_FIELD.match(error.field) is not None


def _add_encoding(report: generation_pb2.MediaReport, encoded: EncodedItem | None) -> None:
    if encoded is not None:
        report.tier = encoded.result.tier
        report.encode.CopyFrom(encoded.result.timings)
        report.transfer_s = encoded.transfer_s
