"""One generation call: from its script to the deltas of its choices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc
from triptych.errors import InvalidRequestError, ModelNotFoundError
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2, generation_pb2

from triptych_mock.media import NUM_TOKENS, KnownMedia, items_of
from triptych_mock.script import answer_tokens, last_text, play_fault, script_of
from triptych_mock.vocabulary import Vocabulary, words

Delta = generation_pb2.ChoiceDelta
_ARGUMENTS_CHARS = 8
_MAX_CHOICES = 128


@dataclass
class Part:
    """What is new in a call: deltas, and on its last part the sums."""

    choices: list[Delta]
    usage: common_pb2.Usage | None = None
    timings: common_pb2.Timings | None = None
    media: list[generation_pb2.MediaReport] = field(default_factory=list)


@dataclass
class Answer:
    """What the mock will say in one call.

    Args:
        deltas: of one choice, without indices. All choices say the same.
        num_prompt_tokens: tokens of texts and media.
    """

    script: mock_pb2.Script
    deltas: list[Delta]
    num_choices: int
    num_prompt_tokens: int
    media: list[generation_pb2.MediaReport]


class Player:
    """Plays the scripts of Chat and Complete.

    Args:
        model: name of the served model.
    """

    def __init__(self, model: str, vocabulary: Vocabulary, known_media: KnownMedia) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._known_media = known_media

    def check_model(self, name: str) -> None:
        """Raise ModelNotFoundError if another model is asked for."""
        if name not in ("", self._model):
            raise ModelNotFoundError(f"the model {name!r} is not served; served: {self._model}", field="model", value=name)

    def chat(self, request: generation_pb2.ChatRequest) -> Answer:
        """The answer of a conversation. Raises TriptychError if the request is at fault."""
        self.check_model(request.model)
        if not request.messages:
            raise InvalidRequestError("messages must not be empty", field="messages", limit=1, value=0)
        script = script_of(last_text(request.messages))
        if request.tool_choice.mode == generation_pb2.ToolChoice.MODE_REQUIRED and not script.tool_calls and request.tools:
            script.text = ""
            script.tool_calls.add(
                id="call-0", name=([*request.tool_choice.allowed_names] or [request.tools[0].name])[0], arguments="{}"
            )
        media = [self._known_media.report(name, item) for name, item in items_of(request.messages)]
        texts = [part.text for message in request.messages for part in message.content]
        return self._answer(script, request.options, sum(len(words(text)) for text in texts), media)

    def complete(self, request: generation_pb2.CompleteRequest) -> Answer:
        """The answer of a completion. Raises TriptychError if the request is at fault."""
        self.check_model(request.model)
        text = self.prompt_text(request)
        if not text:
            raise InvalidRequestError("the prompt is empty", field="prompt", limit=1, value=0)
        media = [self._known_media.report(f"media[{index}]", item) for index, item in enumerate(request.media)]
        answer = self._answer(script_of(text), request.options, len(words(text)), media)
        if request.echo:
            answer.deltas.insert(0, Delta(text=text))
        return answer

    def prompt_text(self, request: generation_pb2.CompleteRequest) -> str:
        """The prompt as text."""
        if request.WhichOneof("prompt") == "token_ids":
            return self._vocabulary.decode(request.token_ids.ids, "token_ids.ids")
        return request.text

    def _answer(
        self,
        script: mock_pb2.Script,
        options: generation_pb2.GenerationOptions,
        num_text_tokens: int,
        media: list[generation_pb2.MediaReport],
    ) -> Answer:
        num_choices = options.n if options.HasField("n") else 1
        if not 1 <= num_choices <= _MAX_CHOICES:
            message = f"options.n must be in [1, {_MAX_CHOICES}]; given: {num_choices}"
            raise InvalidRequestError(message, field="options.n", limit=_MAX_CHOICES, value=num_choices)
        deltas = self._deltas(script, options)
        if script.media:
            media = [*script.media]
        return Answer(script, deltas, num_choices, num_text_tokens + NUM_TOKENS * len(media), media)

    def _deltas(self, script: mock_pb2.Script, options: generation_pb2.GenerationOptions) -> list[Delta]:
        """The deltas of a choice, cut by stop strings and max_tokens."""
        reason = common_pb2.FINISH_REASON_TOOL_CALLS if _can_be_made(script.tool_calls) else common_pb2.FINISH_REASON_STOP
        tokens, last = answer_tokens(script, words), Delta(finish_reason=reason)
        text = "".join(tokens)
        stops = [(text.find(stop), stop) for stop in options.stop if stop and stop in text]
        if stops:
            start, stop = min(stops)
            tokens, last.stop_text = words(text[: start + len(stop) if options.include_stop_in_output else start]), stop
        deltas = [Delta(reasoning=word) for word in words(script.reasoning)]
        deltas += [self._text_delta(word, options) for word in tokens]
        deltas += [Delta(tool_call=piece) for index, call in enumerate(script.tool_calls) for piece in _call_pieces(index, call)]
        sampling = options.sampling
        if sampling.HasField("max_tokens") and sampling.max_tokens < len(deltas):
            deltas, last = deltas[: sampling.max_tokens], Delta(finish_reason=common_pb2.FINISH_REASON_LENGTH)
        if script.finish_reason:
            last.finish_reason = script.finish_reason
        if not deltas:
            return [last]
        deltas[-1].MergeFrom(last)
        return deltas

    def _text_delta(self, word: str, options: generation_pb2.GenerationOptions) -> Delta:
        delta = Delta(text=word)
        if options.return_token_ids:
            delta.token_ids.extend(self._vocabulary.ids(word))
        if options.sampling.HasField("logprobs"):
            entry = delta.logprobs.add(token_id=self._vocabulary.ids(word)[0], token=word, utf8=word.encode(), logprob=-0.5, rank=1)
            for rank in range(options.sampling.logprobs):
                other = word if rank == 0 else f" other{rank}"
                entry.top.add(token_id=self._vocabulary.ids(other)[0], token=other, utf8=other.encode(), logprob=-0.5 - rank)
        return delta


def _can_be_made(calls: Sequence[generation_pb2.ToolCall]) -> bool:
    return bool(calls) and not any(call.incomplete for call in calls)


def _call_pieces(index: int, call: generation_pb2.ToolCall) -> list[generation_pb2.ToolCallDelta]:
    """A tool call as it streams: its name, then its arguments in pieces."""
    pieces = [generation_pb2.ToolCallDelta(index=index, id=call.id or f"call-{index}", name=call.name)]
    starts = range(0, len(call.arguments), _ARGUMENTS_CHARS)
    pieces += [generation_pb2.ToolCallDelta(index=index, arguments=call.arguments[i : i + _ARGUMENTS_CHARS]) for i in starts]
    pieces[-1].incomplete = call.incomplete
    return pieces


async def play(
    answer: Answer, is_final: bool, num_earlier_calls: int, context: grpc.aio.ServicerContext | None = None
) -> AsyncIterator[Part]:
    """The parts of an answer, at the script's pace. The last one has the usage.

    Args:
        is_final: send each choice once, when it has ended.
        num_earlier_calls: calls with the same id before this one.
        context: of the call; None for a call on a session.
    """
    script, start_s = answer.script, time.monotonic()
    fault = script.fault if script.HasField("fault") else None
    held: list[Delta] = []
    for number, delta in enumerate(answer.deltas):
        if fault is not None and number == fault.after_tokens:
            await play_fault(fault, num_earlier_calls, context)
        delay_s = script.token_s if number else script.first_token_s
        if delay_s:
            await asyncio.sleep(delay_s)
        if number == 0:
            first_s = time.monotonic()
        choices = [_indexed(delta, index, answer.num_prompt_tokens if number == 0 else None) for index in range(answer.num_choices)]
        if number == len(answer.deltas) - 1:
            break
        if is_final:
            held += choices
        else:
            yield Part(choices)
    if fault is not None and fault.after_tokens >= len(answer.deltas):
        await play_fault(fault, num_earlier_calls, context)
    num_reasoning = sum(delta.HasField("reasoning") for delta in answer.deltas)
    usage = common_pb2.Usage(
        prompt_tokens=answer.num_prompt_tokens,
        completion_tokens=len(answer.deltas) * answer.num_choices,
        image_tokens=NUM_TOKENS * sum(report.modality == common_pb2.MODALITY_IMAGE for report in answer.media),
        audio_tokens=NUM_TOKENS * sum(report.modality == common_pb2.MODALITY_AUDIO for report in answer.media),
        video_tokens=NUM_TOKENS * sum(report.modality == common_pb2.MODALITY_VIDEO for report in answer.media),
        reasoning_tokens=num_reasoning * answer.num_choices,
    )
    timings = common_pb2.Timings(prefill_s=first_s - start_s, decode_s=time.monotonic() - first_s)
    yield Part(held + choices, usage, timings, answer.media)


def _indexed(delta: Delta, index: int, num_prompt_tokens: int | None) -> Delta:
    own = Delta(index=index, prompt_tokens=num_prompt_tokens)
    own.MergeFrom(delta)
    return own
