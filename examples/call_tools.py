"""Tools: the model calls functions of this program, and answers from their results.

    make serve MODEL=Qwen/Qwen3-0.6B
    MODEL=Qwen/Qwen3-0.6B python examples/call_tools.py "How many days are there from 1 March to 24 December 2026?"

The default model was not trained on tools, so it seldom calls one.
"""

import os
import sys
from datetime import date

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

MODEL = os.environ.get("MODEL", "smollm2-135m-vision")
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)


class DaysBetween(BaseModel):
    """Number of days from one date to another."""

    first: date
    last: date

    def run(self) -> str:
        return str((self.last - self.first).days)


class DayOfTheWeek(BaseModel):
    """The day of the week that a date is."""

    day: date

    def run(self) -> str:
        return self.day.strftime("%A")


TOOLS = {tool.__name__: tool for tool in (DaysBetween, DayOfTheWeek)}
SCHEMAS = [pydantic_function_tool(tool) for tool in TOOLS.values()]

messages = [{"role": "user", "content": " ".join(sys.argv[1:]) or "How many days are there from 1 March to 24 December 2026?"}]
for _ in range(5):  # a model may go on calling for ever
    completion = client.chat.completions.create(model=MODEL, messages=messages, tools=SCHEMAS, max_completion_tokens=1000)
    answer = completion.choices[0].message
    if not answer.tool_calls:
        print(answer.content)
        break
    messages.append({"role": "assistant", "tool_calls": [call.model_dump() for call in answer.tool_calls]})
    for call in answer.tool_calls:
        try:
            result = TOOLS[call.function.name].model_validate_json(call.function.arguments).run()
        except (KeyError, ValueError) as error:  # a wrong name or wrong arguments: the model reads what is wrong, and tries again
            result = f"error: {error}"
        print(f"{call.function.name}({call.function.arguments}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
