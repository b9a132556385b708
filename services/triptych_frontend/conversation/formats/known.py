"""The formats that are known, by vLLM's names, and how to tell which one a chat template asks for."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from triptych.errors import StartupError

from triptych_frontend.conversation.formats import harmony
from triptych_frontend.conversation.formats.table import CallIds, CallShape, ReasoningFormat, ToolFormat
from triptych_frontend.conversation.syntaxes.gemma_calls import GemmaSyntax
from triptych_frontend.conversation.syntaxes.header_calls import HeaderSyntax
from triptych_frontend.conversation.syntaxes.json_calls import JsonSyntax
from triptych_frontend.conversation.syntaxes.pythonic_calls import PythonSyntax
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals
from triptych_frontend.conversation.syntaxes.tagged_calls import TaggedSyntax
from triptych_frontend.settings import FrontendSettings
from triptych_frontend.tokens.tokenizer import Tokenizer

T = TypeVar("T")
_NAME = r"(?P<name>[\w.:/-]+)"
_DEEPSEEK_MARKERS = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK_CALL, _DEEPSEEK_SEP, _DEEPSEEK_CALL_END = _DEEPSEEK_MARKERS
_DEEPSEEK, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DSML, _DSML_END = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"
_KIMI_MARKERS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_CALL_END = _KIMI_MARKERS
_KIMI, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

# Some versions write an id, others leave [ARGS] out.
_MISTRAL_SYNTAX = HeaderSyntax(re.compile(rf"\s*{_NAME}\s*(?:\[CALL_ID\][^\[\]]*)?(?:\[ARGS\])?\s*"), after="[ARGS]", or_json=True)
_DEEPSEEK_V3_SYNTAX = HeaderSyntax(
    re.compile(rf"\s*function\s*{_DEEPSEEK_SEP}\s*{_NAME}\s*(?:```json)?\s*"),
    before=f"function{_DEEPSEEK_SEP}",
    after="\n```json\n",
    opener=_DEEPSEEK_CALL,
    closer=f"\n```{_DEEPSEEK_CALL_END}",
    closers=("```", _DEEPSEEK_CALL_END),
    end=_DEEPSEEK_END,
)
_DEEPSEEK_V31_SYNTAX = HeaderSyntax(
    re.compile(rf"\s*{_NAME}\s*{_DEEPSEEK_SEP}\s*"),
    after=_DEEPSEEK_SEP,
    opener=_DEEPSEEK_CALL,
    closer=_DEEPSEEK_CALL_END,
    end=_DEEPSEEK_END,
)
_KIMI_SYNTAX = HeaderSyntax(
    re.compile(rf"\s*(?P<id>functions\.{_NAME}:\d+)\s*{re.escape(_KIMI_ARGUMENTS)}\s*"),
    before="functions.",
    after=f":{{index}}{_KIMI_ARGUMENTS}",
    opener=_KIMI_CALL,
    closer=_KIMI_CALL_END,
    end=_KIMI_END,
)
_QWEN_SYNTAX = TaggedSyntax(
    "<function=", ">", "<parameter=", ">", "</parameter>", "</function>", value_space="\n", end="</tool_call>"
)
_GLM_45_SYNTAX = TaggedSyntax("", "", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "</tool_call>")
_GLM_47_SYNTAX = TaggedSyntax("", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>", space="")
_MINIMAX_SYNTAX = TaggedSyntax(
    '<invoke name="', '">', '<parameter name="', '">', "</parameter>", "</invoke>", end="</minimax:tool_call>", behind="\n"
)
_DSML_SYNTAX = TaggedSyntax(
    '<｜DSML｜invoke name="',
    '">',
    '<｜DSML｜parameter name="',
    '">',
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    says_type=True,
    end=_DSML_END,
    behind="\n",
)


def _around_each(name: str, syntax: CallSyntax, start: str, end: str, space: str = "", markers: tuple[str, ...] = ()) -> ToolFormat:
    """A format with markers around each call."""
    shape = CallShape(f"{start}{space}", f"{space}{end}{space}{start}{space}", f"{space}{end}")
    return ToolFormat(name, syntax, shape, start, end, markers=markers)


def _around_all(
    name: str, syntax: CallSyntax, start: str, end: str, between: str = "", space: str = "", markers: tuple[str, ...] = ()
) -> ToolFormat:
    """A format with markers around all calls."""
    return ToolFormat(name, syntax, CallShape(f"{start}{space}", between, end), start, end, markers=markers)


_MISTRAL = ToolFormat(
    "mistral",
    _MISTRAL_SYNTAX,
    CallShape("[TOOL_CALLS]", "[TOOL_CALLS]", ""),
    start="[TOOL_CALLS]",
    separators=",",
    markers=("[ARGS]", "[CALL_ID]"),
    call_ids=CallIds.SHORT,
)
_TOOL_FORMATS = (
    _around_each("hermes", JsonSyntax(), "<tool_call>", "</tool_call>", "\n"),
    ToolFormat(
        "llama3_json", JsonSyntax("parameters"), CallShape("", "; ", ""), start="<|python_tag|>", openers="{", separators=";"
    ),
    _MISTRAL,
    ToolFormat("pythonic", PythonSyntax(), CallShape("[", ", ", "]"), openers="["),
    ToolFormat(
        "llama4_pythonic",
        PythonSyntax(),
        CallShape("<|python_start|>[", ", ", "]<|python_end|>"),
        start="<|python_start|>",
        end="<|python_end|>",
        openers="[",
    ),
    ToolFormat("granite", JsonSyntax(), CallShape("<|tool_call|>[", ", ", "]"), start="<|tool_call|>"),
    ToolFormat("phi4_mini_json", JsonSyntax(), CallShape("functools[", ", ", "]"), start="functools"),
    _around_each("qwen3_coder", _QWEN_SYNTAX, "<tool_call>", "</tool_call>", "\n"),
    ToolFormat("glm45", _GLM_45_SYNTAX, CallShape("<tool_call>", "\n<tool_call>", ""), start="<tool_call>", end="</tool_call>"),
    ToolFormat("glm47", _GLM_47_SYNTAX, CallShape("<tool_call>", "<tool_call>", ""), start="<tool_call>", end="</tool_call>"),
    _around_all("minimax_m2", _MINIMAX_SYNTAX, "<minimax:tool_call>", "</minimax:tool_call>", space="\n"),
    _around_all("deepseek_v3", _DEEPSEEK_V3_SYNTAX, _DEEPSEEK, _DEEPSEEK_END, between="\n", markers=_DEEPSEEK_MARKERS),
    _around_all("deepseek_v31", _DEEPSEEK_V31_SYNTAX, _DEEPSEEK, _DEEPSEEK_END, markers=_DEEPSEEK_MARKERS),
    _around_all("deepseek_v32", _DSML_SYNTAX, _DSML, _DSML_END, space="\n", markers=("｜DSML｜",)),
    replace(_around_all("kimi_k2", _KIMI_SYNTAX, _KIMI, _KIMI_END, markers=_KIMI_MARKERS), call_ids=CallIds.FUNCTIONS),
    _around_each("gemma4", GemmaSyntax('<|"|>'), "<|tool_call>", "<tool_call|>", markers=('<|"|>',)),
    _around_each("functiongemma", GemmaSyntax("<escape>"), "<start_function_call>", "<end_function_call>", markers=("<escape>",)),
    harmony.TOOL_FORMAT,
    ToolFormat("json", JsonSyntax(), CallShape("[", ", ", "]"), openers="{[", separators=",;"),
)
TOOL_FORMATS = {tools.name: tools for tools in _TOOL_FORMATS}


class _OldMistralSyntax(HeaderSyntax):
    """Of models before the one that writes names first."""

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        return JsonSyntax().rules(number, tool, literals)


OLD_MISTRAL = replace(
    _MISTRAL, syntax=_OldMistralSyntax(_MISTRAL_SYNTAX.header, or_json=True), shape=CallShape("[TOOL_CALLS][", ", ", "]")
)

_REASONING_FORMATS = (
    harmony.REASONING_FORMAT,
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
    ReasoningFormat("gemma4", ("<|channel>thought\n",), ("<channel|>",), tokens=("<|channel>",)),
)
REASONING_FORMATS = {reasoning.name: reasoning for reasoning in _REASONING_FORMATS}

#: What a template's text contains -> its format; the first that fits.
_SIGNS_OF_TOOLS: tuple[tuple[str, str], ...] = (
    (r"<\|channel\|>", "openai"),
    (r"｜DSML｜", "deepseek_v32"),
    (rf"(?s){_DEEPSEEK}.*```json", "deepseek_v3"),
    (_DEEPSEEK, "deepseek_v31"),
    (re.escape(_KIMI), "kimi_k2"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"</arg_key>(\n|\\n)<arg_value>", "glm45"),
    (r"<arg_key>", "glm47"),
    (r"<parameter=", "qwen3_coder"),
    (r"<\|tool_call>", "gemma4"),
    (r"<start_function_call>", "functiongemma"),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"<\|tool_call\|>", "granite"),
    (r"functools\[", "phi4_mini_json"),
    (r"<tool_call>", "hermes"),
    (r"<\|python_start\|>", "llama4_pythonic"),
    (r"<\|python_tag\|>|\{\"name\": function name", "llama3_json"),
    (r"\[\w+\(\w+=", "pythonic"),
    (r"", "json"),
)


def tool_format_of(template: str) -> ToolFormat:
    """The format of tool calls that a chat template asks for. JSON, if it shows none."""
    return TOOL_FORMATS[next(name for sign, name in _SIGNS_OF_TOOLS if re.search(sign, template))]


def reasoning_format_of(template: str, added_tokens: Collection[str]) -> ReasoningFormat | None:
    """The format of reasoning that a chat template or the tokenizer's added tokens show; None if they show none."""
    for reasoning in _REASONING_FORMATS:
        if any(start in template or start in added_tokens for start in reasoning.starts) or any(
            end in template for end in reasoning.ends
        ):
            return reasoning
    return None


def choose_formats(
    source: str, tool_source: str | None, tokenizer: Tokenizer, settings: FrontendSettings
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    """The formats of a model, by name, or, for `auto`, by its chat template and its tokens. Raises StartupError for unknown names.

    Args:
        source: the template.
        tool_source: the template for conversations with tools; None if it shows no tools.
    """
    tokens = {token.content for token in tokenizer.added_tokens.values()}
    tool_call_parser, reasoning_parser = settings.tool_call_parser, settings.reasoning_parser
    tools = reasoning = None
    if tool_call_parser == "auto":
        tools = tool_format_of(tool_source) if tool_source is not None else None
    elif tool_call_parser.endswith(".py"):
        tools = _format_from_file(Path(tool_call_parser))
    elif tool_call_parser != "none":
        tools = _named(TOOL_FORMATS, tool_call_parser, "tool_call_parser")
    if reasoning_parser == "auto":
        reasoning = reasoning_format_of(source, tokens)
    elif reasoning_parser != "none":
        reasoning = _named(REASONING_FORMATS, reasoning_parser, "reasoning_parser")
    if tools is not None and tools.name == "mistral" and "[ARGS]" not in tokens:
        tools = OLD_MISTRAL
    return tools, reasoning


def _format_from_file(path: Path) -> ToolFormat:
    """The `ToolFormat` that a Python file defines as `TOOL_FORMAT`. The file is code: it can do whatever this process can.

    Raises:
        StartupError: it cannot be read or run, or defines no format. The message names the file.
    """
    spec = importlib.util.spec_from_file_location(f"triptych_tool_format_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise StartupError(f"{path} is not a Python file, so it defines no format of tool calls")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it may raise anything
        raise StartupError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    found = getattr(module, "TOOL_FORMAT", None)
    if not isinstance(found, ToolFormat):
        raise StartupError(f"{path} must define TOOL_FORMAT, a ToolFormat; it is {type(found).__name__} there")
    return found


def _named(formats: Mapping[str, T], name: str, setting: str) -> T:
    if name not in formats:
        raise StartupError(f"{setting} must be auto, none, or one of {', '.join(formats)}; given: {name!r}")
    return formats[name]
