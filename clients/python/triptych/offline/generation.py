"""One prompt or conversation: the text of its prompt, then what the model generates."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.offline.convert import request_output
from triptych.offline.outputs import RequestOutput
from triptych.offline.prompts import Prompt, read_prompt
from triptych.offline.runtime import Outcome, Runtime
from triptych.sampling_params import SamplingParams
from triptych.v1 import generation_pb2, preprocess_pb2


@dataclass(frozen=True)
class Generation:
    """A request, and the prompt's text as it was given."""

    request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest
    text: str | None


def complete_generation(prompt: Prompt, params: SamplingParams, model: str) -> tuple[Generation, int]:
    """The request for a prompt, and its size in bytes."""
    request, text = read_prompt(prompt)
    return _with_options(request, text, params, model)


def _with_options(
    request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest, text: str | None, params: SamplingParams, model: str
) -> tuple[Generation, int]:
    request.model = model
    request.options.MergeFrom(params.to_options())
    request.options.return_token_ids = True
    return Generation(request, text), request.ByteSize()


async def generate(runtime: Runtime, generation: Generation) -> Outcome[RequestOutput]:
    """Render and tokenize the prompt, then generate. The frontend does both; the second call has the token ids of the first one."""
    request, text = generation.request, generation.text
    token_ids = _given_token_ids(request)
    if token_ids is None:
        rendered = await runtime.call(runtime.preprocess.Preprocess, _preprocess_request(request))
        text, token_ids = rendered.prompt, rendered.token_ids
        request = generation_pb2.CompleteRequest(
            model=request.model, token_ids=generation_pb2.TokenIds(ids=token_ids), options=request.options
        )
    response = await runtime.call(runtime.generation.Complete, request)
    output = request_output(response, text, token_ids)
    return Outcome(output, len(token_ids), sum(len(completion.token_ids) for completion in output.outputs))


def _given_token_ids(request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest) -> list[int] | None:
    is_given = isinstance(request, generation_pb2.CompleteRequest) and request.HasField("token_ids")
    return list(request.token_ids.ids) if is_given else None  # type: ignore[union-attr]


def _preprocess_request(request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest) -> preprocess_pb2.PreprocessRequest:
    if isinstance(request, generation_pb2.ChatRequest):
        return preprocess_pb2.PreprocessRequest(chat=request)
    return preprocess_pb2.PreprocessRequest(complete=request)
