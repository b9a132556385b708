"""Tool calls as models write them, after the chat templates that their makers published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_GEMMA_QUOTE = '<|"|>'
#: Name of the tool, and its arguments.
Call = tuple[str, Mapping[str, Any]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raw(value: Any) -> str:
    """Strings as they are, other values as JSON: what templates write for `value | tojson if value is not string else value`."""
    return value if isinstance(value, str) else _json(value)


def hermes(calls: Sequence[Call]) -> str:
    """Qwen2.5, Qwen3, Hermes 2 Pro."""
    return "\n".join(f"<tool_call>\n{_json({'name': name, 'arguments': args})}\n</tool_call>" for name, args in calls)


def llama3_json(calls: Sequence[Call]) -> str:
    """Llama 3.1 to 3.3."""
    return "; ".join(_json({"name": name, "parameters": args}) for name, args in calls)


def mistral(calls: Sequence[Call]) -> str:
    """Mistral Small 3.2 and later."""
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(args)}" for name, args in calls)


def pythonic(calls: Sequence[Call]) -> str:
    """Llama 3.2 and 4, ToolACE."""
    return f"[{', '.join(f'{name}({_keywords(args)})' for name, args in calls)}]"


def llama4_pythonic(calls: Sequence[Call]) -> str:
    """Llama 4."""
    return f"<|python_start|>{pythonic(calls)}<|python_end|>"


def _keywords(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in args.items())


def granite(calls: Sequence[Call]) -> str:
    """Granite 3."""
    return f"<|tool_call|>{_json([{'name': name, 'arguments': args} for name, args in calls])}"


def phi4_mini_json(calls: Sequence[Call]) -> str:
    """Phi-4 mini."""
    return f"functools{_json([{'name': name, 'arguments': args} for name, args in calls])}"


def plain_json(calls: Sequence[Call]) -> str:
    """Models whose template names no format."""
    return _json([{"name": name, "arguments": args} for name, args in calls])


def qwen3_coder(calls: Sequence[Call]) -> str:
    """Qwen3-Coder, Qwen3-Next coder, Qwen3.5."""
    return "\n".join(f"<tool_call>\n<function={name}>\n{_parameters(args)}</function>\n</tool_call>" for name, args in calls)


def _parameters(args: Mapping[str, Any]) -> str:
    return "".join(f"<parameter={key}>\n{_raw(value)}\n</parameter>\n" for key, value in args.items())


def glm45(calls: Sequence[Call]) -> str:
    """GLM-4.5 and 4.6."""
    pairs = [
        "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{_raw(value)}</arg_value>\n" for key, value in args.items())
        for _, args in calls
    ]
    return "\n".join(f"<tool_call>{name}\n{written}</tool_call>" for (name, _), written in zip(calls, pairs, strict=True))


def glm47(calls: Sequence[Call]) -> str:
    """GLM-4.7."""
    pairs = [
        "".join(f"<arg_key>{key}</arg_key><arg_value>{_raw(value)}</arg_value>" for key, value in args.items()) for _, args in calls
    ]
    return "".join(f"<tool_call>{name}{written}</tool_call>" for (name, _), written in zip(calls, pairs, strict=True))


def minimax_m2(calls: Sequence[Call]) -> str:
    """MiniMax-M2."""
    invokes = [
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{_raw(value)}</parameter>\n' for key, value in args.items())
        + "</invoke>\n"
        for name, args in calls
    ]
    return f"<minimax:tool_call>\n{''.join(invokes)}</minimax:tool_call>"


def deepseek_v3(calls: Sequence[Call]) -> str:
    """DeepSeek V3 and R1."""
    written = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(args)}\n```<｜tool▁call▁end｜>" for name, args in calls
    ]
    return "<｜tool▁calls▁begin｜>" + "\n".join(written) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    """DeepSeek V3.1."""
    written = [f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(args)}<｜tool▁call▁end｜>" for name, args in calls]
    return "<｜tool▁calls▁begin｜>" + "".join(written) + "<｜tool▁calls▁end｜>"


def deepseek_v32(calls: Sequence[Call]) -> str:
    """DeepSeek V3.2."""
    invokes = []
    for name, args in calls:
        parameters = [
            f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{_raw(value)}</｜DSML｜parameter>'
            for key, value in args.items()
        ]
        invokes.append(f'<｜DSML｜invoke name="{name}">\n' + "".join(f"{one}\n" for one in parameters) + "</｜DSML｜invoke>")
    return "<｜DSML｜function_calls>\n" + "\n".join(invokes) + "\n</｜DSML｜function_calls>"


def kimi_k2(calls: Sequence[Call]) -> str:
    """Kimi K2."""
    written = [
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{_json(args)}<|tool_call_end|>"
        for number, (name, args) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


def gemma4(calls: Sequence[Call]) -> str:
    """Gemma 4."""
    return "".join(f"<|tool_call>call:{name}{_gemma(args, _GEMMA_QUOTE)}<tool_call|>" for name, args in calls)


def functiongemma(calls: Sequence[Call]) -> str:
    """FunctionGemma."""
    return "".join(f"<start_function_call>call:{name}{_gemma(args, '<escape>')}<end_function_call>" for name, args in calls)


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma(item, quote)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item, quote) for item in value) + "]"
    return json.dumps(value)


#: Name of the format -> its calls.
WRITERS: dict[str, Callable[[Sequence[Call]], str]] = {
    "hermes": hermes,
    "llama3_json": llama3_json,
    "mistral": mistral,
    "pythonic": pythonic,
    "llama4_pythonic": llama4_pythonic,
    "granite": granite,
    "phi4_mini_json": phi4_mini_json,
    "qwen3_coder": qwen3_coder,
    "glm45": glm45,
    "glm47": glm47,
    "minimax_m2": minimax_m2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "deepseek_v32": deepseek_v32,
    "kimi_k2": kimi_k2,
    "gemma4": gemma4,
    "functiongemma": functiongemma,
    "json": plain_json,
}
#: What a string may not have where strings have no quotation marks: it would end there.
ENDS = {
    "qwen3_coder": "</parameter>",
    "glm45": "</arg_value>",
    "glm47": "</arg_value>",
    "minimax_m2": "</parameter>",
    "deepseek_v32": "</｜DSML｜parameter>",
    "gemma4": '<|"|>',
    "functiongemma": "<escape>",
}
