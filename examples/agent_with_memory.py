"""An agent that keeps a shopping list, and knows what was said before: the server stores the turns of the conversation.

    make serve MODEL=Qwen/Qwen3-0.6B
    MODEL=Qwen/Qwen3-0.6B python examples/agent_with_memory.py

Say "Put milk on my list", then "And bread", then "What is on it?". The default model is too small for it: it seldom calls a tool.
"""

import json
import os
import sys

from openai import OpenAI

MODEL = os.environ.get("MODEL", "smollm2-135m-vision")
client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
)
shopping: list[str] = []


def add(item: str) -> str:
    shopping.append(item)
    return f"added {item}"


def read() -> str:
    return ", ".join(shopping) or "the list is empty"


RULES = "You keep a shopping list. Be brief."
FUNCTIONS = {"add": add, "read": read}
# Strict: the server lets the model write no other arguments than these.
ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"], "additionalProperties": False}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "name": "add", "description": "Add an item to the shopping list.", "parameters": ITEM, "strict": True},
    {"type": "function", "name": "read", "description": "Read the shopping list.", "parameters": NOTHING, "strict": True},
]

last_id, news = None, []
print("Say something, one message a line. Ctrl-D ends the conversation.", file=sys.stderr)
for line in sys.stdin:
    news.append({"role": "user", "content": line.strip()})
    for _ in range(5):  # a model may go on calling for ever
        # Only what is new is sent. The server has the earlier turns, but not the instructions and the tools.
        response = client.responses.create(
            model=MODEL, previous_response_id=last_id, input=news, tools=TOOLS, instructions=RULES, max_output_tokens=1000
        )
        last_id, news = response.id, []
        for call in response.output:
            if call.type == "function_call":
                try:
                    result = FUNCTIONS[call.name](**json.loads(call.arguments))
                except (KeyError, TypeError, ValueError) as error:  # the model reads what is wrong, and tries again
                    result = f"error: {error}"
                news.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        if not news:
            break
    print(response.output_text, flush=True)
