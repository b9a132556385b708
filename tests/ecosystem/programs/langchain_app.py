"""LangChain against an OpenAI-compatible server. Arguments: base URL (with /v1), model."""

import asyncio
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

url, model = sys.argv[1:]
llm = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_tokens=64)


class City(BaseModel):
    """A city."""

    name: str
    is_capital: bool


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


question = HumanMessage("What is the capital of France?")
whole = llm.invoke([question])
assert "Paris" in whole.content, whole
assert whole.usage_metadata["output_tokens"] > 0
assert "".join(chunk.content for chunk in llm.stream([question])) == whole.content
assert asyncio.run(llm.ainvoke([question])).content == whole.content

bound = llm.bind_tools([get_weather], tool_choice="any")
called = bound.invoke([HumanMessage("What is the weather in Paris?")])
(call,) = called.tool_calls[:1]
assert call["name"] == "get_weather", called
assert isinstance(call["args"]["city"], str), called
streamed = None
for chunk in bound.stream([HumanMessage("What is the weather in Paris?")]):
    streamed = chunk if streamed is None else streamed + chunk
assert streamed.tool_calls[0]["args"] == call["args"], (streamed.tool_calls, call)
# LangChain sends null as the content of a turn that only called tools.
results = [ToolMessage(get_weather.invoke(one["args"]), tool_call_id=one["id"]) for one in called.tool_calls]
after = llm.bind_tools([get_weather], tool_choice="none").invoke([HumanMessage("What is the weather in Paris?"), called, *results])
assert after.content, after
assert not after.tool_calls, after

for method in ("json_schema", "function_calling"):
    city = llm.with_structured_output(City, method=method).invoke("Name the capital of France.")
    assert isinstance(city, City), city

by_responses = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, use_responses_api=True)
answer = by_responses.invoke([question])
assert "Paris" in answer.text, answer
print("ok")
