"""A small model that calls tools and reasons, and requests for it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from triptych.v1 import generation_pb2

from support.builders.tokenizer import write_model
from support.run_dir import run_dir

#: In the manner of Qwen3: tools in the system turn, `<tool_call>` around JSON, `<think>` before the answer.
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{%- if message.name %} {{ message.name }}{% endif %}
{%- if message.reasoning_content %}
<think>{{ message.reasoning_content }}</think>
{%- endif %}
{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined %}{% if enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}{% endif %}"""  # noqa: E501

WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


@lru_cache(1)
def tool_model_dir() -> Path:
    """The model's directory, written once per test run."""
    return write_model(run_dir("tools") / "tools", chat_template=TOOL_TEMPLATE, max_position_embeddings=4096)


def tool(name: str = "get_weather", schema: Any = WEATHER_SCHEMA, **fields: Any) -> generation_pb2.Tool:
    """A tool, by default one with a city and a number of days."""
    return generation_pb2.Tool(name=name, parameters_json_schema=json.dumps(schema), **fields)
