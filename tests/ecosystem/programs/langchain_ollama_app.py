"""LangChain's classes for Ollama. Arguments: URL of a scripted server, URL of a real one that has `embed` too, model.

The scripted server answers with what the last text of the conversation tells it: {"mock": {...}}.
"""

import asyncio
import base64
import json
import sys
from contextlib import suppress
from pathlib import Path

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

scripted, served, model = sys.argv[1:]
options = {"model": model, "temperature": 0, "num_predict": 64, "validate_model_on_init": True}
llm = ChatOllama(base_url=served, **options)
mock = ChatOllama(base_url=scripted, **options)
SHAPES = Path(__file__).resolve().parents[3] / "examples" / "three-shapes.png"


class City(BaseModel):
    """A city."""

    name: str
    is_capital: bool


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


question = HumanMessage("What is the capital of France?")
whole = llm.invoke([SystemMessage("Be brief."), question])
assert "Paris" in whole.content, whole
assert whole.usage_metadata["output_tokens"] > 0
assert whole.response_metadata["done_reason"] in ("stop", "length")
plain = llm.invoke([question])
assert "".join(chunk.content for chunk in llm.stream([question])) == plain.content
assert asyncio.run(llm.ainvoke([question])).content == plain.content

url = f"data:image/png;base64,{base64.b64encode(SHAPES.read_bytes()).decode()}"
picture = HumanMessage([{"type": "text", "text": "Where is the triangle?"}, {"type": "image_url", "image_url": {"url": url}}])
seen = llm.invoke([picture])
# LangChain begins the text with a line break, for which the demonstration's model was not trained.
assert seen.usage_metadata["input_tokens"] > plain.usage_metadata["input_tokens"] + 30, seen

call = {"id": "call_1", "name": "get_weather", "arguments": json.dumps({"city": "Oslo"})}
asked = HumanMessage(json.dumps({"mock": {"toolCalls": [call], "reasoning": "Hm.", "text": "I look."}}))
bound = mock.bind_tools([get_weather])
called = bound.invoke([asked])
assert [(one["name"], one["args"]) for one in called.tool_calls] == [("get_weather", {"city": "Oslo"})], called
streamed = None
for chunk in bound.stream([asked]):
    streamed = chunk if streamed is None else streamed + chunk
assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [("get_weather", {"city": "Oslo"})], streamed
# LangChain sends no ids: the result finds its call.
results = [ToolMessage(get_weather.invoke(one["args"]), tool_call_id=one["id"]) for one in called.tool_calls]
assert bound.invoke([asked, called, *results]).content == "sunny in Oslo"

for method in ("json_schema", "json_mode"):
    shaped = ChatOllama(base_url=served, **options | {"num_predict": 200})
    city = shaped.with_structured_output(City if method == "json_schema" else None, method=method).invoke(
        "Name the capital of France."
    )
    assert isinstance(city, City if method == "json_schema" else dict), city

assert "Paris" in OllamaLLM(base_url=served, **options).invoke("What is the capital of France?")
embeddings = OllamaEmbeddings(model="embed", base_url=served, validate_model_on_init=True)
vectors = embeddings.embed_documents(["A cat.", "A tax form."])
assert len(vectors) == 2
assert max(abs(a - b) for a, b in zip(vectors[0], embeddings.embed_query("A cat."), strict=True)) < 1e-3

with suppress(ValueError):
    ChatOllama(base_url=served, model="no-such-model", validate_model_on_init=True)
    raise SystemExit("a model that is not there was taken")
print("ok")
