"""The formats that are known, by vLLM's names, and how to tell which one a chat template asks for."""

from __future__ import annotations

import re
from collections.abc import Collection

from triptych_frontend.output.formats.named_calls import NamedCalls
from triptych_frontend.output.formats.pythonic_calls import PythonicCalls
from triptych_frontend.output.formats.table import CallShape, CallStyle, ReasoningFormat, ToolFormat

_TOOL_FORMATS = (
    ToolFormat(
        "hermes",
        CallShape("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
        start="<tool_call>",
        end="</tool_call>",
    ),
    ToolFormat("llama3_json", CallShape("", "; ", "", CallStyle.PARAMETERS), start="<|python_tag|>", openers="{", separators=";"),
    ToolFormat(
        "mistral",
        CallShape("[TOOL_CALLS]", "[TOOL_CALLS]", "", CallStyle.NAMED),
        start="[TOOL_CALLS]",
        separators=",",
        reader=NamedCalls,
        markers=("[ARGS]", "[CALL_ID]"),
        is_short_id=True,
    ),
    ToolFormat("pythonic", CallShape("[", ", ", "]", CallStyle.PYTHON), openers="[", reader=PythonicCalls),
    ToolFormat("granite", CallShape("<|tool_call|>[", ", ", "]"), start="<|tool_call|>"),
    ToolFormat("phi4_mini_json", CallShape("functools[", ", ", "]"), start="functools"),
    ToolFormat("json", CallShape("[", ", ", "]"), openers="{[", separators=",;"),
)
TOOL_FORMATS = {tools.name: tools for tools in _TOOL_FORMATS}

_REASONING_FORMATS = (
    # The template may have opened it, or the model opens it.
    ReasoningFormat("qwen3", ("<think>",), ("</think>",)),
    ReasoningFormat("deepseek_r1", ("<think>",), ("</think>",), is_open=True),
    ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",)),
    ReasoningFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    ReasoningFormat("seed_oss", ("<seed:think>",), ("</seed:think>",)),
    ReasoningFormat("kimi_vl", ("◁think▷",), ("◁/think▷",)),
)
REASONING_FORMATS = {reasoning.name: reasoning for reasoning in _REASONING_FORMATS}

#: Of models before the one that writes names first.
OLD_MISTRAL_SHAPE = CallShape("[TOOL_CALLS][", ", ", "]")

#: What a template's text contains -> its format; the first that fits. None: a format that is not known here.
_SIGNS_OF_TOOLS: tuple[tuple[str, str | None], ...] = (
    (r"<function=|<arg_key>|<｜tool▁calls▁begin｜>|<\|channel\|>", None),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"<\|tool_call\|>", "granite"),
    (r"functools\[", "phi4_mini_json"),
    (r"<tool_call>", "hermes"),
    (r"<\|python_tag\|>|\{\"name\": function name", "llama3_json"),
    (r"\[\w+\(\w+=", "pythonic"),
    (r"", "json"),
)


def tool_format_of(template: str) -> ToolFormat | None:
    """The format of tool calls that a chat template asks for; None if it is not known here."""
    name = next(name for sign, name in _SIGNS_OF_TOOLS if re.search(sign, template))
    return TOOL_FORMATS[name] if name is not None else None


def reasoning_format_of(template: str, added_tokens: Collection[str]) -> ReasoningFormat | None:
    """The format of reasoning that a chat template or the tokenizer's added tokens show; None if they show none."""
    for reasoning in _REASONING_FORMATS:
        if any(start in template or start in added_tokens for start in reasoning.starts) or any(
            end in template for end in reasoning.ends
        ):
            return reasoning
    return None
