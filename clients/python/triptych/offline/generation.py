"""One prompt or conversation: what its prompt is, then what the model generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from triptych.offline.calls.runtime import Outcome, Runtime, new_request_id
from triptych.offline.convert import request_output
from triptych.offline.outputs import RequestOutput
from triptych.offline.prompts import Prompt, read_prompt
from triptych.requests.build import chat_request
from triptych.requests.types import Messages
from triptych.v1 import detokenize_pb2, generation_pb2, preprocess_pb2


class Params(Protocol):
    """`SamplingParams` or `BeamSearchParams`."""

    def to_options(self) -> generation_pb2.GenerationOptions: ...


@dataclass(frozen=True)
class ChatOptions:
    """What all conversations of a call share."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Generation:
    """A request, and the prompt's text where it is known."""

    request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest
    text: str | None
    #: The prompt's token ids, where nothing is left to be rendered.
    token_ids: Sequence[int] | None = field(default=None)

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
    request = chat_request(
        messages,
        # A prompt that ends in an open message cannot begin a turn after it.
        add_generation_prompt=options.add_generation_prompt and not options.continue_final_message,
        continue_final_message=options.continue_final_message,
        tools=options.tools,
        template_kwargs=options.template_kwargs,
    )
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
        preprocess = _preprocess_request(generation.request)
        rendered = await runtime.call(runtime.preprocess.Preprocess, preprocess, request_id)
        text, token_ids = rendered.prompt if text is None else text, rendered.token_ids
    response = await _answer(runtime, generation, token_ids, request_id)
    if generation.request.options.HasField("truncate_prompt_tokens"):
        # The last ones were kept.
        token_ids = token_ids[-response.usage.prompt_tokens :]
    output = request_output(response, text, token_ids)
    return Outcome(output, len(token_ids), sum(len(completion.token_ids) for completion in output.outputs))


async def _answer(runtime: Runtime, generation: Generation, token_ids: Sequence[int], request_id: str) -> Any:
    request = generation.request
    if not generation.has_media:
        tokens = generation_pb2.TokenIds(ids=token_ids)
        complete = generation_pb2.CompleteRequest(model=request.model, token_ids=tokens, options=request.options)
        return await runtime.call(runtime.generation.Complete, complete, request_id)
    if isinstance(request, generation_pb2.CompleteRequest):
        return await runtime.call(runtime.generation.Complete, request, request_id)
    response = await runtime.call(runtime.generation.Chat, request, request_id)
    for choice in response.choices:
        # Reasoning and tool calls are parts of the text here, as in a conversation without media.
        if choice.reasoning or choice.tool_calls:
            choice.text = await _text(runtime, choice.token_ids, request.options)
    return response


async def _text(runtime: Runtime, token_ids: Sequence[int], options: generation_pb2.GenerationOptions) -> str:
    request = detokenize_pb2.DetokenizeRequest(token_ids=token_ids)
    if options.HasField("skip_special_tokens"):
        request.skip_special_tokens = options.skip_special_tokens
    return str((await runtime.call(runtime.detokenize.Detokenize, request)).text)


def _preprocess_request(request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest) -> preprocess_pb2.PreprocessRequest:
    if isinstance(request, generation_pb2.ChatRequest):
        return preprocess_pb2.PreprocessRequest(chat=request)
    return preprocess_pb2.PreprocessRequest(complete=request)
