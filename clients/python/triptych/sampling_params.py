"""Sampling parameters by vLLM's names, for code that was written for vLLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.requests.options import take_generation
from triptych.v1 import generation_pb2


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """What the output must look like. Exactly one field is set.

    Args:
        json: a JSON Schema, as a dictionary, as JSON text or as a pydantic model class.
        regex: a regular expression that the whole output matches.
        choice: the output is one of these strings.
        grammar: a context-free grammar in Lark's notation.
        json_object: True: the output is any JSON object.
    """

    json: str | Mapping[str, object] | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


@dataclass(kw_only=True)
class SamplingParams:
    """How text is generated, with the names, defaults and meanings of vLLM's `SamplingParams`.

    `max_tokens` is 16 by default, as in vLLM. The gRPC contracts have no such default: `Client.chat` without `max_tokens` generates
    up to the end of the model's context.

    Args:
        n: choices for each prompt.
        best_of: choices to generate, of which the best `n` are returned. None: n.
        presence_penalty: subtracted once from the logit of each generated token. [-2, 2]
        frequency_penalty: subtracted per occurrence from the logit of each generated token. [-2, 2]
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output. 1 is off.
        temperature: divides the logits. 0 is greedy.
        top_p: smallest set of tokens whose probability reaches top_p. 1 is off.
        top_k: keep the k likeliest tokens. 0 and -1 are off.
        min_p: drop tokens less likely than min_p times the likeliest. 0 is off.
        seed: seed of the random numbers. None and -1: a fresh one for each request. With n > 1, choice i uses seed + i.
        stop: strings that end the text.
        stop_token_ids: tokens that end the text.
        bad_words: words that are never generated.
        include_stop_str_in_output: keep the stop string at the end of the text.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        max_tokens: most tokens to generate. None: what is left of the model's context.
        min_tokens: tokens to generate before a stop token may end the text.
        logprobs: log probabilities of each output token and of this many alternatives. None: no log probabilities.
        prompt_logprobs: the same for the tokens of the prompt.
        skip_special_tokens: leave special tokens out of the text.
        truncate_prompt_tokens: keep only this many last tokens of the prompt. -1: as many as fit into the model's context.
        logit_bias: token id -> number that is added to its logit. [-100, 100]
        allowed_token_ids: only these tokens can be generated.
        structured_outputs: what the output must look like.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def to_options(self) -> generation_pb2.GenerationOptions:
        """The same as a message of the contracts.

        Raises:
            InvalidRequestError: a value that the contract's field cannot hold, or not exactly one field of `structured_outputs`.
                Ranges are checked by the server.
        """
        given: dict[str, Any] = {one.name: getattr(self, one.name) for one in dataclasses.fields(SamplingParams)}
        given["include_stop_in_output"] = self.include_stop_str_in_output
        given["top_k"] = 0 if self.top_k == -1 else self.top_k
        given["seed"] = None if self.seed == -1 else self.seed
        if (wanted := self.structured_outputs) is not None:
            given |= {"json_schema": wanted.json, "regex": wanted.regex, "choice": wanted.choice}
            given |= {"grammar": wanted.grammar, "json_object": wanted.json_object}
        options = take_generation(given)
        if wanted is not None and not options.HasField("constraint"):
            known = "json, regex, choice, grammar, json_object"
            raise InvalidRequestError(f"structured_outputs must have one of {known}", field="structured_outputs", limit=known)
        return options
