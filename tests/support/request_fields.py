"""What each request field of chat and completions does: one row per field, which tests send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """A field that the frontend receives.

    Args:
        value: in the client's JSON.
        path: of the field in the request to the frontend.
        expected: the value there, in protobuf's JSON.
        others: further fields of the client's JSON.
    """

    value: Any
    path: str
    expected: Any
    others: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """A field that changes the answer.

    Args:
        path: what it changes there.
        expected: the value there.
        without: the value there without the field.
    """

    value: Any
    path: str
    expected: Any
    without: Any = None
    others: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """A field that is not supported.

    Args:
        value: gets a 400 that names the field.
        taken: asks for nothing, and is taken.
    """

    value: Any
    taken: Any = None


@dataclass(frozen=True)
class Label:
    """A field that changes nothing, by its definition."""

    value: Any


Row = Sent | Answered | Refused | Label

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
TOOLS = {"tools": [TOOL]}
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"type": "string"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"string"}}}'
_SAMPLING, _OPTIONS = "options.sampling.", "options."
_IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/a.png"}}]}]
_STREAM = {"stream": True}

#: Fields of both routes.
_SHARED: dict[str, Row] = {
    "model": Sent("fake/model", "model", "fake/model"),
    "stream": Answered(True, "object", "chunk", "whole"),
    "stream_options": Answered({"include_usage": True}, "usage.prompt_tokens", 7, others=_STREAM),
    "n": Sent(3, _OPTIONS + "n", 3),
    "best_of": Sent(4, _OPTIONS + "best_of", 4, {"n": 1}),
    "temperature": Sent(0.5, _SAMPLING + "temperature", 0.5),
    "top_p": Sent(0.5, _SAMPLING + "top_p", 0.5),
    "top_k": Sent(-1, _SAMPLING + "top_k", 0),
    "min_p": Sent(0.25, _SAMPLING + "min_p", 0.25),
    "presence_penalty": Sent(-2, _SAMPLING + "presence_penalty", -2),
    "frequency_penalty": Sent(2, _SAMPLING + "frequency_penalty", 2),
    "repetition_penalty": Sent(1.5, _SAMPLING + "repetition_penalty", 1.5),
    "logit_bias": Sent({"7": -100}, _SAMPLING + "logit_bias", {"7": -100.0}),
    "seed": Sent(-(2**63), _SAMPLING + "seed", str(-(2**63))),
    "stop": Sent("end", _OPTIONS + "stop", ["end"]),
    "user": Label("u"),
    "min_tokens": Sent(0, _SAMPLING + "min_tokens", 0),
    "max_tokens": Sent(5, _SAMPLING + "max_tokens", 5),
    "ignore_eos": Sent(False, _SAMPLING + "ignore_eos", False),
    "stop_token_ids": Sent([0, 2**32 - 1], _SAMPLING + "stop_token_ids", [0, 2**32 - 1]),
    "allowed_token_ids": Sent([3], _SAMPLING + "allowed_token_ids", [3]),
    "skip_special_tokens": Sent(False, _OPTIONS + "skip_special_tokens", False),
    "include_stop_str_in_output": Sent(True, _OPTIONS + "include_stop_in_output", True),
    "priority": Sent(-1, _OPTIONS + "priority", -1),
    "cache_salt": Sent("s", _OPTIONS + "cache_salt", "s"),
    "prompt_cache_key": Sent("k", _OPTIONS + "affinity_key", "k"),
    "return_token_ids": Answered(True, "choices.0.token_ids", [5, 6]),
    "response_format": Sent(
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": False}},
        _OPTIONS + "constraint",
        {"json_schema": SCHEMA_TEXT},
    ),
    "structured_outputs": Sent({"regex": "a+"}, _OPTIONS + "constraint", {"regex": "a+"}),
    "bad_words": Sent(["damn"], _OPTIONS + "bad_words", ["damn"]),
    "truncate_prompt_tokens": Sent(-1, _OPTIONS + "truncate_prompt_tokens", -1),
    "use_beam_search": Sent(True, _OPTIONS + "beam_search", {"width": 4}, {"best_of": 4}),
    "length_penalty": Sent(0.5, _OPTIONS + "beam_search.length_penalty", 0.5, {"use_beam_search": True}),
    "spaces_between_special_tokens": Refused(False, taken=True),
    "logits_processors": Refused(["x"], taken=[]),
    "return_tokens_as_token_ids": Refused(True, taken=False),
    "request_id": Refused("x"),
    "kv_transfer_params": Refused({}),
    "vllm_xargs": Refused({"x": 1}, taken={}),
    "guided_json": Refused({}),
    "guided_regex": Refused("a"),
    "guided_choice": Refused(["a"]),
    "guided_grammar": Refused("a"),
    "guided_decoding_backend": Refused("auto"),
    "guided_whitespace_pattern": Refused(" "),
}
_PROMPT_LOGPROBS = [None, {"9": {"logprob": -2.0, "rank": 3, "decoded_token": "i"}}]
_PROMPT_LOGPROBS[1] |= {"8": {"logprob": -0.5, "rank": 1, "decoded_token": "o"}}  # type: ignore[operator]

CHAT_FIELDS: dict[str, Row] = _SHARED | {
    "messages": Sent([{"role": "user", "content": "Hi"}], "messages", [{"role": "user", "content": [{"text": "Hi"}]}]),
    "max_completion_tokens": Sent(5, _SAMPLING + "max_tokens", 5),
    "logprobs": Answered(True, "choices.0.logprobs.content.0.logprob", -1.0),
    "top_logprobs": Answered(2, "choices.0.logprobs.content.0.top_logprobs.0.token", "b", others={"logprobs": True}),
    "prompt_logprobs": Answered(1, "prompt_logprobs", _PROMPT_LOGPROBS),
    "add_generation_prompt": Sent(False, "add_generation_prompt", False),
    "continue_final_message": Sent(True, "continue_final_message", True),
    "chat_template_kwargs": Sent({"a": [1, None]}, "template_kwargs", {"a": [1.0, None]}),
    "mm_processor_kwargs": Sent({"fps": 2}, "messages.0.content.0.media.processor_options", {"fps": 2.0}, {"messages": _IMAGE}),
    "metadata": Label({"a": "b"}),
    "safety_identifier": Label("s"),
    "tools": Sent([TOOL], "tools", [{"name": "find", "parameters_json_schema": '{"type":"object"}'}]),
    "tool_choice": Sent("required", "tool_choice.mode", "MODE_REQUIRED", TOOLS),
    "parallel_tool_calls": Sent(False, "parallel_tool_calls", False, TOOLS),
    "reasoning_effort": Sent("high", "reasoning.effort", "high"),
    "thinking_token_budget": Sent(0, "reasoning.max_tokens", 0),
    "include_reasoning": Answered(False, "choices.0.message.reasoning_content", None, "hm"),
    "service_tier": Answered("auto", "service_tier", "default"),
    "audio": Refused({"voice": "x"}),
    "function_call": Refused("auto", taken="none"),
    "functions": Refused([{}], taken=[]),
    "modalities": Refused(["text", "audio"], taken=["text"]),
    "moderation": Refused({"model": "x"}),
    "prediction": Refused({"type": "content"}),
    "prompt_cache_options": Refused({}),
    "prompt_cache_retention": Refused("24h", taken="in_memory"),
    "store": Refused(True, taken=False),
    "verbosity": Refused("high", taken="medium"),
    "web_search_options": Refused({}),
    "add_special_tokens": Refused(True, taken=False),
    "chat_template": Refused("{{ messages }}"),
    "documents": Refused([{"text": "x"}], taken=[]),
    "echo": Refused(True, taken=False),
    "media_io_kwargs": Refused({"video": {}}, taken={}),
}
COMPLETION_FIELDS: dict[str, Row] = _SHARED | {
    "prompt": Sent([1, 2], "token_ids", {"ids": [1, 2]}),
    "logprobs": Answered(1, "choices.0.logprobs.token_logprobs", [-1.0]),
    "prompt_logprobs": Answered(1, "choices.0.prompt_logprobs", _PROMPT_LOGPROBS),
    "echo": Sent(True, "echo", True),
    "add_special_tokens": Sent(False, "add_special_tokens", False),
    "suffix": Sent("x", "suffix", "x"),
}
