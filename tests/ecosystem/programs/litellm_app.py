"""LiteLLM against an OpenAI-compatible server. Arguments: base URL (with /v1), model."""

import json
import sys

import litellm
from pydantic import BaseModel

url, model = sys.argv[1:]
options = {"model": f"openai/{model}", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 64}
question = [{"role": "user", "content": "What is the capital of France?"}]
tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: str
    is_capital: bool


whole = litellm.completion(messages=question, **options)
assert "Paris" in whole.choices[0].message.content
assert whole.usage.completion_tokens > 0
chunks = litellm.completion(messages=question, stream=True, stream_options={"include_usage": True}, **options)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content

weather = [{"role": "user", "content": "What is the weather in Paris?"}]
# A tiny model would go on calling until its last token.
called = litellm.completion(messages=weather, tools=[tool], tool_choice="required", parallel_tool_calls=False, **options).choices[0]
assert called.finish_reason == "tool_calls", called
call = called.message.tool_calls[0]
assert isinstance(json.loads(call.function.arguments)["city"], str)
# LiteLLM drops the content of a turn that only called tools.
turn = {"role": "assistant", "tool_calls": [call.model_dump()]}
result = {"role": "tool", "tool_call_id": call.id, "content": ""}
after = litellm.completion(messages=[*weather, turn, result], tools=[tool], tool_choice="none", **options)
assert after.choices[0].message.content

shaped = litellm.completion(messages=question, response_format=City, **options)
City.model_validate_json(shaped.choices[0].message.content)

try:
    litellm.completion(messages=question, **options | {"model": "openai/no-such-model"})
    raise SystemExit("a wrong model was answered")
except litellm.NotFoundError:
    pass
print("ok")
