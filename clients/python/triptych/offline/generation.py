"""One prompt or conversation: what its prompt is, then what the model generates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.offline.beam_search import BeamSearchParams
from triptych.offline.calls.runtime import Outcome, Runtime, new_request_id
from triptych.offline.outputs import CompletionOutput, Logprob, LogprobsAt, RequestOutput
from triptych.offline.prompts import Prompt, read_prompt
from triptych.requests.build import build_preprocess, chat_request
from triptych.requests.options import ChatOptions
from triptych.requests.types import Messages
from triptych.sampling_params import SamplingParams
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2

#: How texts are generated.
Params = SamplingParams | BeamSearchParams
_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True)
class Generation:
    """A request, and the prompt's text where it is known."""

    request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest
    text: str | None
    #: The prompt's token ids, where nothing is left to be rendered.
    token_ids: Sequence[int] | None = None

    @property
    def has_media(self) -> bool:
        """Whether there is more than text."""
        if isinstance(self.request, generation_pb2.CompleteRequest):
            return bool(self.request.media)
        return any(part.HasField("media") for message in self.request.messages for part in message.content)


def complete_generation(prompt: Prompt, params: Params, model: str) -> tuple[Generation, int]:
    """The request for a prompt, and its size in bytes."""
    request, text = read_prompt(prompt)
    _set_options(request, params, model)
    token_ids = request.token_ids.ids if text is None and not request.media else None
    return Generation(request, text, token_ids), request.ByteSize()


def chat_generation(messages: Messages, params: Params, model: str, options: ChatOptions) -> tuple[Generation, int]:
    """The request for a conversation, and its size in bytes."""
    request = chat_request(messages, **options)
    _set_options(request, params, model)
    return Generation(request, None), request.ByteSize()


def _set_options(request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest, params: Params, model: str) -> None:
    request.model = model
    request.options.MergeFrom(params.to_options())
    request.options.return_token_ids = True


async def generate(runtime: Runtime, generation: Generation) -> Outcome[RequestOutput]:
    """Render and tokenize the prompt, then generate.

    The frontend does both. Without media, the second call has the token ids of the first one. Files travel twice: the first call
    keeps nothing of them.
    """
    text, token_ids, request_id = generation.text, generation.token_ids, new_request_id()
    if token_ids is None:
        rendered = await runtime.call(runtime.preprocess.Preprocess, build_preprocess(generation.request, {}), request_id)
        text, token_ids = rendered.prompt if text is None else text, rendered.token_ids
    response = await _answer(runtime, generation, token_ids, request_id)
    if generation.request.options.HasField("truncate_prompt_tokens"):
        # The last ones were kept.
        token_ids = token_ids[-response.usage.prompt_tokens :]
    output = _request_output(response, text, token_ids)
    return Outcome(output, len(token_ids), sum(len(completion.token_ids) for completion in output.outputs))


async def _answer(runtime: Runtime, generation: Generation, token_ids: Sequence[int], request_id: str) -> Any:
    request, options = generation.request, generation.request.options
    if not generation.has_media:
        tokens = generation_pb2.TokenIds(ids=token_ids)
        request = generation_pb2.CompleteRequest(model=request.model, token_ids=tokens, options=options)
    if isinstance(request, generation_pb2.CompleteRequest):
        return await runtime.call(runtime.generation.Complete, request, request_id)
    response = await runtime.call(runtime.generation.Chat, request, request_id)
    skip = options.skip_special_tokens if options.HasField("skip_special_tokens") else None
    for choice in response.choices:
        # Reasoning and tool calls are parts of the text here, as in a conversation without media.
        if choice.reasoning or choice.tool_calls:
            detokenize = detokenize_pb2.DetokenizeRequest(token_ids=choice.token_ids, skip_special_tokens=skip)
            choice.text = (await runtime.call(runtime.detokenize.Detokenize, detokenize)).text
    return response


def _request_output(
    response: generation_pb2.ChatResponse | generation_pb2.CompleteResponse, prompt: str | None, token_ids: Sequence[int]
) -> RequestOutput:
    """The output for one prompt, of which all choices have ended."""
    first = response.choices[0]
    return RequestOutput(
        request_id=response.request_id,
        prompt=prompt,
        prompt_token_ids=list(token_ids),
        outputs=[_completion_output(choice) for choice in response.choices],
        prompt_logprobs=[_logprobs_at(token) if token.HasField("logprob") else None for token in first.prompt_logprobs] or None,
        num_cached_tokens=response.usage.cached_tokens,
        usage=response.usage,
        metrics=response.timings,
        media=list(response.media),
    )


def _completion_output(choice: generation_pb2.Choice) -> CompletionOutput:
    """One choice."""
    matched = choice.WhichOneof("matched_stop")
    return CompletionOutput(
        index=choice.index,
        text=choice.text,
        token_ids=list(choice.token_ids),
        cumulative_logprob=sum(token.logprob for token in choice.logprobs) if choice.logprobs else None,
        logprobs=[_logprobs_at(token) for token in choice.logprobs] or None,
        finish_reason=_FINISH_REASONS.get(choice.finish_reason),
        stop_reason=getattr(choice, matched) if matched else None,
    )


def _logprobs_at(token: generation_pb2.TokenLogprob) -> LogprobsAt:
    """The token itself, and the likeliest ones."""
    at = {token.token_id: Logprob(token.logprob, token.rank, token.token)}
    for rank, top in enumerate(token.top, start=1):
        at.setdefault(top.token_id, Logprob(top.logprob, rank, top.token))
    return at
