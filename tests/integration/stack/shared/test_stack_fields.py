"""Fields of a chat completion, sent to a real model: each has its effect on the answer.

contract/gateway/openai/test_gateway_fields.py tests that refused fields get their 400, and what of the others reaches the frontend.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from support.request_fields import CHAT_FIELDS, Answered, Sent
from support.stack import QUESTION, Stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "find_city", "description": "Finds a city.", "parameters": SCHEMA}}
SAMPLED = {"temperature": 1.5, "max_tokens": 16, "seed": 7}


class Ask:
    """Asks the question with further fields."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def __call__(self, *, status: int = 200, **fields: Any) -> Any:
        response = self.stack.http.post(CHAT, json=QUESTION | fields)
        assert response.status_code == status, response.text
        return response.json()


def choice(answer: Any) -> Any:
    return answer["choices"][0]


def text(answer: Any) -> str:
    content = choice(answer)["message"]["content"]
    assert isinstance(content, str)
    return content


def token_ids(ask: Ask, words: str) -> list[int]:
    answer = ask.stack.http.post("/tokenize", json={"model": QUESTION["model"], "prompt": words, "add_special_tokens": False})
    return list(answer.json()["tokens"])


# One function per field: it asks, and raises AssertionError unless the field had its effect.


def messages(ask: Ask) -> None:
    assert text(ask(messages=[{"role": "user", "content": "What is a cat?"}])) != text(ask())


def model(ask: Ask) -> None:
    error = ask(model="no-such-model", status=404)["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def max_tokens(ask: Ask, name: str = "max_tokens") -> None:
    answer = ask(**{"max_tokens": None, name: 2})
    assert choice(answer)["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


def temperature(ask: Ask) -> None:
    assert len({text(ask(temperature=2, seed=seed)) for seed in range(4)}) > 1
    assert len({text(ask(temperature=0, seed=seed)) for seed in range(2)}) == 1


def top_p(ask: Ask) -> None:
    assert text(ask(**SAMPLED, top_p=1e-6)) == text(ask(max_tokens=16))


def top_k(ask: Ask) -> None:
    assert text(ask(**SAMPLED, top_k=1)) == text(ask(max_tokens=16))


def min_p(ask: Ask) -> None:
    assert text(ask(**SAMPLED, min_p=1.0)) == text(ask(max_tokens=16))


def seed(ask: Ask) -> None:
    assert text(ask(**SAMPLED)) == text(ask(**SAMPLED))
    assert text(ask(**SAMPLED)) != text(ask(**SAMPLED | {"seed": 8}))


def frequency_penalty(ask: Ask, name: str = "frequency_penalty", value: float = 2) -> None:
    loop = {"messages": [{"role": "user", "content": "Say la la la la la la la la."}], "max_tokens": 32}
    assert text(ask(**loop, **{name: value})) != text(ask(**loop))


def logit_bias(ask: Ask) -> None:
    (paris,) = token_ids(ask, " Paris")
    assert "Paris" not in text(ask(logit_bias={str(paris): -100}, max_tokens=10))


def logprobs(ask: Ask) -> None:
    entries = choice(ask(logprobs=True, max_tokens=4))["logprobs"]["content"]
    assert len(entries) == 4
    assert all(entry["logprob"] <= 0 and entry["top_logprobs"] == [] for entry in entries)


def top_logprobs(ask: Ask) -> None:
    entries = choice(ask(logprobs=True, top_logprobs=3, max_tokens=4))["logprobs"]["content"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert math.isclose(entry["top_logprobs"][0]["logprob"], entry["logprob"])


def prompt_logprobs(ask: Ask) -> None:
    answer = ask(prompt_logprobs=1, max_tokens=1)
    entries = answer["prompt_logprobs"]
    assert len(entries) == answer["usage"]["prompt_tokens"]
    assert entries[0] is None
    assert all(one["logprob"] <= 0 for entry in entries[1:] for one in entry.values())


def n(ask: Ask) -> None:
    texts = [one["message"]["content"] for one in ask(**SAMPLED, n=3)["choices"]]
    assert len(set(texts)) > 1
    # Choice i uses seed + i.
    assert texts[1] == text(ask(**SAMPLED | {"seed": 8}))


def stop(ask: Ask) -> None:
    answer = ask(stop=["Paris"])
    assert text(answer) == "The capital of France is "
    assert choice(answer)["finish_reason"] == "stop"


def include_stop_str_in_output(ask: Ask) -> None:
    assert text(ask(stop=["Paris"], include_stop_str_in_output=True)) == "The capital of France is Paris"


def stop_token_ids(ask: Ask) -> None:
    (paris,) = token_ids(ask, " Paris")
    assert text(ask(stop_token_ids=[paris])) == "The capital of France is"


def min_tokens(ask: Ask) -> None:
    assert ask(min_tokens=24)["usage"]["completion_tokens"] >= 24 > ask()["usage"]["completion_tokens"]


def ignore_eos(ask: Ask) -> None:
    assert ask(ignore_eos=True)["usage"]["completion_tokens"] == QUESTION["max_tokens"]


def bad_words(ask: Ask) -> None:
    assert "Paris" not in text(ask(bad_words=["Paris"], max_tokens=10))


def allowed_token_ids(ask: Ask) -> None:
    assert set(text(ask(allowed_token_ids=token_ids(ask, "yes no"), max_tokens=4))) <= set("yes no")


def skip_special_tokens(ask: Ask) -> None:
    assert "<|im_end|>" in text(ask(skip_special_tokens=False, ignore_eos=True))
    assert "<|im_end|>" not in text(ask(skip_special_tokens=True, ignore_eos=True))


def tools(ask: Ask) -> None:
    # The model may or may not call it; the prompt has it.
    assert ask(tools=[TOOL])["usage"]["prompt_tokens"] > ask()["usage"]["prompt_tokens"] + 20


def tool_choice(ask: Ask) -> None:
    named = {"type": "function", "function": {"name": "find_city"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for wanted in ("required", named, allowed):
        one = choice(ask(tools=[TOOL], tool_choice=wanted, max_tokens=64))
        assert one["finish_reason"] == "tool_calls"
        call = one["message"]["tool_calls"][0]
        assert call["function"]["name"] == "find_city"
        assert set(json.loads(call["function"]["arguments"])) == {"city"}
    assert "tool_calls" not in choice(ask(tools=[TOOL], tool_choice="none"))["message"]


def parallel_tool_calls(ask: Ask) -> None:
    message = choice(ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=64))["message"]
    assert len(message["tool_calls"]) == 1


def response_format(ask: Ask) -> None:
    shaped = ask(response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}})
    assert set(json.loads(text(shaped))) == {"city"}
    answer = ask(response_format={"type": "json_object"}, max_tokens=200)
    assert choice(answer)["finish_reason"] == "length" or isinstance(json.loads(text(answer)), dict)


def structured_outputs(ask: Ask) -> None:
    assert text(ask(structured_outputs={"choice": ["Rome", "Oslo"]})) in ("Rome", "Oslo")
    assert text(ask(structured_outputs={"regex": "[0-9]{4}"})).isdigit()
    assert text(ask(structured_outputs={"grammar": 'start: "a" "b"'})) == "ab"
    assert set(json.loads(text(ask(structured_outputs={"json": SCHEMA})))) == {"city"}


def truncate_prompt_tokens(ask: Ask) -> None:
    assert ask(truncate_prompt_tokens=12, max_tokens=1)["usage"]["prompt_tokens"] == 12


def best_of(ask: Ask) -> None:
    answer = ask(**SAMPLED, best_of=4)
    assert len(answer["choices"]) == 1
    assert text(answer) in [one["message"]["content"] for one in ask(**SAMPLED, n=4)["choices"]]


def use_beam_search(ask: Ask) -> None:
    answer = ask(use_beam_search=True, n=2, max_tokens=6)
    assert len({one["message"]["content"] for one in answer["choices"]}) == 2


def length_penalty(ask: Ask) -> None:
    assert ask(length_penalty=0.5, status=400)["error"]["param"] == "length_penalty"
    ask(use_beam_search=True, length_penalty=0.5, max_tokens=4)


def stream(ask: Ask) -> None:
    response = ask.stack.http.post(CHAT, json=QUESTION | {"stream": True})
    assert response.text.endswith("data: [DONE]\n\n")


def stream_options(ask: Ask) -> None:
    body = QUESTION | {"stream": True, "stream_options": {"include_usage": True}}
    *_, last, _, _ = ask.stack.http.post(CHAT, json=body).text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] > 0


def add_generation_prompt(ask: Ask) -> None:
    assert ask(add_generation_prompt=False, max_tokens=1)["usage"]["prompt_tokens"] < ask(max_tokens=1)["usage"]["prompt_tokens"]


def continue_final_message(ask: Ask) -> None:
    turns = [*QUESTION["messages"], {"role": "assistant", "content": "The capital of France is"}]  # type: ignore[misc]
    assert text(ask(messages=turns, continue_final_message=True, add_generation_prompt=False)).startswith(" Paris")


def cache_salt(ask: Ask) -> None:
    long = {"messages": [{"role": "user", "content": "Tell me about the sea. " * 20}], "max_tokens": 1}
    ask(**long, cache_salt="one")
    cached = [ask(**long, cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"] for salt in ("one", "two")]
    assert cached[0] > cached[1] == 0


def return_token_ids(ask: Ask) -> None:
    answer = ask(return_token_ids=True)
    assert len(choice(answer)["token_ids"]) == answer["usage"]["completion_tokens"]


def service_tier(ask: Ask) -> None:
    assert ask(service_tier="auto", max_tokens=1)["service_tier"] == "default"


def reasoning_effort(ask: Ask) -> None:
    ask(reasoning_effort="none", max_tokens=1)
    assert ask(reasoning_effort="high", status=400)["error"]["param"] == "reasoning_effort"


HONOURED: dict[str, Callable[[Ask], None]] = {
    function.__name__: function
    for function in (
        messages, model, max_tokens, temperature, top_p, top_k, min_p, seed, frequency_penalty, logit_bias, logprobs, top_logprobs,
        prompt_logprobs, n, stop, include_stop_str_in_output, stop_token_ids, min_tokens, ignore_eos, bad_words, allowed_token_ids,
        skip_special_tokens, tools, tool_choice, parallel_tool_calls, response_format, structured_outputs, truncate_prompt_tokens,
        best_of, use_beam_search, length_penalty, stream, stream_options, add_generation_prompt, continue_final_message, cache_salt,
        return_token_ids, service_tier, reasoning_effort,
    )
} | {
    "max_completion_tokens": lambda ask: max_tokens(ask, "max_completion_tokens"),
    "presence_penalty": lambda ask: frequency_penalty(ask, "presence_penalty"),
    "repetition_penalty": lambda ask: frequency_penalty(ask, "repetition_penalty", 2.0),
}  # fmt: skip

#: Tested where a model or a stack has what they need: pictures, reasoning, a template with variables, waiting requests, engines.
ELSEWHERE = {
    "chat_template_kwargs",
    "include_reasoning",
    "mm_processor_kwargs",
    "priority",
    "prompt_cache_key",
    "thinking_token_budget",
}


def test_every_field_that_does_something_is_here() -> None:
    assert {name for name, row in CHAT_FIELDS.items() if isinstance(row, Sent | Answered)} == HONOURED.keys() | ELSEWHERE


@pytest.mark.long
@pytest.mark.parametrize("name", HONOURED)
def test_field(name: str, stack: Stack) -> None:
    HONOURED[name](Ask(stack))
