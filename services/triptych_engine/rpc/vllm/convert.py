"""Requests and outputs between vLLM's contract and ours.

Numbers that are not set have the meaning that vLLM's own servicer gives them (smg-grpc-servicer, `vllm/servicer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from triptych.errors import InvalidRequestError, UnimplementedError
from triptych.v1 import common_pb2, engine_pb2

_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
}
#: Fields of a request that ask for something that this engine does not do.
_REFUSED = frozenset({"kv_transfer_params", "kv_transfer_params_json", "mm_inputs", "media_refs", "extra_mm_inputs"})


def engine_request(request: vllm_pb2.GenerateRequest) -> engine_pb2.EngineRequest:
    """Our request for one of vLLM's.

    Raises:
        InvalidRequestError: a value makes no sense.
        UnimplementedError: it asks for something that this engine does not do.
    """
    for field, _ in request.ListFields():
        if field.name in _REFUSED:
            raise UnimplementedError(f"{field.name} is not supported here", field=field.name)
    params = request.sampling_params
    result = engine_pb2.EngineRequest(
        request_id=request.request_id,
        prompt_token_ids=_prompt(request),
        n=params.n or 1,
        sampling=_sampling(params),
    )
    constraint = _constraint(params)
    if constraint is not None:
        result.constraint.CopyFrom(constraint)
    return result


def _prompt(request: vllm_pb2.GenerateRequest) -> Sequence[int]:
    if request.WhichOneof("input") != "tokenized":
        raise UnimplementedError("this engine takes token ids (tokenized), not text", field="text")
    token_ids, params = request.tokenized.input_ids, request.sampling_params
    most = params.truncate_prompt_tokens if params.HasField("truncate_prompt_tokens") else -1
    if most < -1 or most == 0:
        raise InvalidRequestError(f"truncate_prompt_tokens must be -1 or at least 1; given: {most}", field="truncate_prompt_tokens")
    return token_ids if most == -1 else token_ids[-most:]


def _sampling(params: vllm_pb2.SamplingParams) -> common_pb2.SamplingParams:
    if any(token < 0 for token in params.logit_bias):
        raise InvalidRequestError("logit_bias has a negative token id", field="logit_bias")
    sampling = common_pb2.SamplingParams(
        temperature=params.temperature if params.HasField("temperature") else 1.0,
        top_p=params.top_p or 1.0,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        logit_bias=dict(params.logit_bias.items()),
    )
    for field in ("max_tokens", "seed", "logprobs", "prompt_logprobs"):
        if params.HasField(field):
            value = getattr(params, field)
            if value < 0 and field != "seed":
                raise UnimplementedError(f"{field} of {value}, which means all, is not supported here", field=field)
            setattr(sampling, field, value)
    return sampling


def _constraint(params: vllm_pb2.SamplingParams) -> common_pb2.Constraint | None:
    """The constraint of a request. Grammars are in Lark's notation."""
    kind = params.WhichOneof("constraint")
    if kind is None:
        return None
    if kind == "structural_tag":
        raise UnimplementedError("structural_tag is not supported here", field="structural_tag")
    if kind == "choice":
        return common_pb2.Constraint(choice=common_pb2.StringList(values=params.choice.choices))
    constraint = common_pb2.Constraint()
    setattr(constraint, kind, getattr(params, kind))
    return constraint


class Sequences:
    """The outputs of a request's sequences, as vLLM tells them.

    Args:
        request: what was asked for. Unless it streams, each sequence is told once, whole.
    """

    def __init__(self, request: vllm_pb2.GenerateRequest, prompt_token_ids: Sequence[int]) -> None:
        self._streams = request.stream
        self._stop_token_ids = frozenset(request.sampling_params.stop_token_ids)
        self._prompt_token_ids = prompt_token_ids
        #: Index -> what a sequence that is told whole has had so far.
        self._whole: dict[int, engine_pb2.SequenceOutput] = {}
        self._prompt_logprobs: dict[int, vllm_pb2.InputLogProbs] = {}

    def responses(self, output: engine_pb2.SequenceOutput) -> list[vllm_pb2.GenerateResponse]:
        """What to send for an output."""
        index = output.index
        if output.prompt_logprobs:
            self._prompt_logprobs[index] = _input_logprobs(self._prompt_token_ids, output.prompt_logprobs)
        responses: list[vllm_pb2.GenerateResponse] = []
        if self._streams and output.token_ids:
            chunk = vllm_pb2.GenerateStreamChunk(
                token_ids=output.token_ids,
                prompt_tokens=len(self._prompt_token_ids),
                completion_tokens=len(output.token_ids),
                cached_tokens=output.usage.cached_tokens,
                output_logprobs=_output_logprobs(output.logprobs),
                input_logprobs=self._prompt_logprobs.pop(index, None),
                index=index,
            )
            responses.append(vllm_pb2.GenerateResponse(chunk=chunk))
        if not self._streams:
            self._whole.setdefault(index, engine_pb2.SequenceOutput()).MergeFrom(output)
        if output.finish_reason:
            responses.append(vllm_pb2.GenerateResponse(complete=self._complete(output)))
        return responses

    def _complete(self, last: engine_pb2.SequenceOutput) -> vllm_pb2.GenerateComplete:
        told = last if self._streams else self._whole.pop(last.index)
        complete = vllm_pb2.GenerateComplete(
            output_ids=told.token_ids,
            finish_reason=_FINISH_REASONS.get(last.finish_reason, "error"),
            prompt_tokens=len(self._prompt_token_ids),
            completion_tokens=len(told.token_ids),
            cached_tokens=last.usage.cached_tokens,
            output_logprobs=_output_logprobs(told.logprobs),
            input_logprobs=self._prompt_logprobs.pop(last.index, None),
            index=last.index,
        )
        if last.HasField("stop_token_id") and last.stop_token_id in self._stop_token_ids:  # not the model's own
            complete.matched_token_id = last.stop_token_id
        return complete


def _output_logprobs(entries: Sequence[engine_pb2.TokenLogprobs]) -> vllm_pb2.OutputLogProbs | None:
    if not entries:
        return None
    return vllm_pb2.OutputLogProbs(
        token_logprobs=[entry.logprob for entry in entries],
        token_ids=[entry.token_id for entry in entries],
        top_logprobs=_top_logprobs(entries),
    )


def _input_logprobs(prompt: Sequence[int], entries: Sequence[engine_pb2.TokenLogprobs]) -> vllm_pb2.InputLogProbs:
    """Of a prompt, whose first token has none."""
    first = vllm_pb2.InputTokenLogProb()
    return vllm_pb2.InputLogProbs(
        token_logprobs=[first, *(vllm_pb2.InputTokenLogProb(value=entry.logprob) for entry in entries)],
        token_ids=prompt,
        top_logprobs=[vllm_pb2.TopLogProbs(), *top] if (top := _top_logprobs(entries)) else [],
    )


def _top_logprobs(entries: Sequence[engine_pb2.TokenLogprobs]) -> list[vllm_pb2.TopLogProbs]:
    if not any(entry.top_token_ids for entry in entries):
        return []
    return [vllm_pb2.TopLogProbs(values=entry.top_logprobs, token_ids=entry.top_token_ids) for entry in entries]
