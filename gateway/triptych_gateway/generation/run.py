"""Generates for one request: joins the frontend calls, one per prompt, into one stream of events or one JSON object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from triptych.errors import InternalError, ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.generation.call import Choice, GenerationCall
from triptych_gateway.metrics import GenerationMeter
from triptych_gateway.tracing import note_call
from triptych_gateway.wire.cost import Cost

Response = generation_pb2.GenerationCallResponse
_GOOD_ENDS = (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH, common_pb2.FINISH_REASON_TOOL_CALLS)


class Generation:
    """Generates for one request.

    Args:
        responses: responses of the frontend calls, each with the index of its prompt. The calls start when this is first read.
        call: the request. Choice i of prompt p has the index p * num_choices + i.
    """

    def __init__(
        self, responses: AsyncGenerator[list[tuple[int, Response]], None], call: GenerationCall, meter: GenerationMeter
    ) -> None:
        self._responses = responses
        # Drop the calls here, so that their files can be freed as soon as a frontend has answered.
        self._call = replace(call, calls=())
        self._num_choices = call.num_choices
        self._num_choices_in_all = len(call.calls) * call.num_choices
        self._writer = call.writer
        self._meter = meter
        self._cost = Cost()
        # The model is the same in all of them.
        operation = "chat" if isinstance(call.calls[0].request, generation_pb2.ChatRequest) else "text_completion"
        note_call(operation, call.calls[0].request.model, call.num_choices, is_stream=call.is_stream)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream's events. The first item comes with the first response, so the request is then known to be accepted."""
        ends, events = list[common_pb2.FinishReason](), self._writer.opening(self._num_choices_in_all)
        failure, is_started, tally = None, False, self._meter.tally
        try:
            async with aclosing(self._responses) as batches:
                async for batch in batches:
                    for prompt, response in batch:
                        for delta in response.choices:
                            if delta.finish_reason:
                                ends.append(delta.finish_reason)
                                ended = _failure(delta)
                                failure = failure or ended
                            if tally is not None and failure is None:
                                tally.add(prompt, delta)
                            events += self._writer.delta(prompt * self._num_choices + delta.index, delta)
                        self._cost.add(response)
                    # A failure before the first event becomes an HTTP status. After it, the failed choice's text is sent first.
                    if events and (is_started or failure is None):
                        is_started = True
                        self._meter.event()
                        yield events
                        events = b""
                    if failure is not None:
                        raise failure
        except TriptychError as error:
            raise self._call.in_client_terms(error) from error
        self._finish(ends)
        yield self._writer.closing(self._cost)

    async def whole(self) -> bytes:
        """The JSON of the whole answer."""
        choices = [Choice() for _ in range(self._num_choices_in_all)]
        try:
            async with aclosing(self._responses) as batches:
                async for batch in batches:
                    for prompt, response in batch:
                        for delta in response.choices:
                            if delta.finish_reason and (failure := _failure(delta)) is not None:
                                raise failure
                            choices[prompt * self._num_choices + delta.index].add(delta)
                        self._cost.add(response)
        except TriptychError as error:
            raise self._call.in_client_terms(error) from error
        self._finish([end for choice in choices if (end := choice.last.finish_reason)])
        return self._writer.whole(choices, self._cost)

    def _finish(self, ends: Sequence[common_pb2.FinishReason]) -> None:
        """Check that every choice has ended, and record the cost."""
        if len(ends) != self._num_choices_in_all:
            raise InternalError(f"the frontend finished {len(ends)} of {self._num_choices_in_all} choices")
        self._meter.finished(self._cost, ends)


def _failure(delta: generation_pb2.ChoiceDelta) -> TriptychError | None:
    """The error of a choice that did not end normally. Clears the finish reason, so that the delta can still be encoded."""
    if delta.finish_reason in _GOOD_ENDS:
        return None
    is_aborted = delta.finish_reason == common_pb2.FINISH_REASON_ABORT
    delta.ClearField("finish_reason")
    if is_aborted:
        # Not aborted by the client, but for example by an operator who put the engine to sleep.
        return ServiceUnavailableError("the generation was aborted in the engine; try again")
    return InternalError("the generation failed; the frontend's log has the details")
