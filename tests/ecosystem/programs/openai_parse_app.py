"""Parsed answers and the streaming helper of the openai package. Arguments: base URL (with /v1), model."""

import sys
from typing import Any, Literal

import openai
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

url, model = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none", max_retries=0)


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=20)
    unit: Literal["celsius", "fahrenheit"]


class City(BaseModel):
    """A structured answer."""

    name: str = Field(max_length=20)
    is_capital: bool


TOOLS = [pydantic_function_tool(GetWeather)]
OPTIONS: dict[str, Any] = {
    "model": model,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "temperature": 0,
    "max_completion_tokens": 100,
    # A tiny model would go on calling until its last token.
    "parallel_tool_calls": False,
    "tools": TOOLS,
    "response_format": City,
}
NAMED = {"type": "function", "function": {"name": "GetWeather"}}


def check(completion: Any, choice: Any) -> Any:
    """What was parsed: the arguments of a call, or the text."""
    (one,) = completion.choices
    calls = one.message.tool_calls or []
    if choice == "none" or (choice == "auto" and not calls):
        assert one.finish_reason == "stop", one
        assert not calls, one
        assert isinstance(one.message.parsed, City), one
        return one.message.parsed
    (call,) = calls
    assert one.finish_reason == "tool_calls", one
    assert call.id, call
    assert call.function.name == "GetWeather", call
    assert isinstance(call.function.parsed_arguments, GetWeather), call
    assert one.message.parsed is None, one
    return call.function.parsed_arguments


for choice in ("required", NAMED, "none", "auto"):
    parsed = check(client.chat.completions.parse(**OPTIONS, tool_choice=choice), choice)
    with client.chat.completions.stream(**OPTIONS, tool_choice=choice, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        completion = stream.get_final_completion()
    assert check(completion, choice) == parsed, (completion, parsed)
    assert completion.usage.completion_tokens > 0
    text = [event for event in events if event.type == "content.delta" and event.delta]
    if isinstance(parsed, GetWeather):
        (done,) = (event for event in events if event.type == "tool_calls.function.arguments.done")
        assert done.parsed_arguments == parsed, done
        deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        assert "".join(event.arguments_delta for event in deltas) == done.arguments
        assert not text, text
    else:
        (done,) = (event for event in events if event.type == "content.done")
        assert done.parsed == parsed, done
        assert "".join(event.delta for event in text) == done.content
        assert text[-1].parsed == parsed.model_dump(), text[-1]

cut = None
try:
    client.chat.completions.parse(**OPTIONS | {"max_completion_tokens": 2}, tool_choice="none")
except openai.LengthFinishReasonError as error:
    cut = error.completion
assert cut is not None, "a cut answer was parsed"
assert cut.usage.completion_tokens == 2
print("ok")
