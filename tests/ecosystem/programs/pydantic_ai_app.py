"""Pydantic AI against an OpenAI-compatible server. Arguments: base URL (with /v1), model."""

import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.output import NativeOutput
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:]
chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="none"))


class City(BaseModel):
    name: str
    is_capital: bool


settings = {"temperature": 0.0, "max_tokens": 100}
assert "Paris" in Agent(chat, model_settings=settings).run_sync("What is the capital of France?").output
# The default output is a forced tool call; the native one is a response_format.
for output_type in (City, NativeOutput(City)):
    assert isinstance(
        Agent(chat, output_type=output_type, model_settings=settings).run_sync("Name the capital of France.").output, City
    )
print("ok")
