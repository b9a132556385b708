"""Formats of tool calls from files that are no part of this program."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from triptych.errors import StartupError

from triptych_frontend.conversation.formats.table import ToolFormat

_NAME = "TOOL_FORMAT"


def format_from_file(path: Path) -> ToolFormat:
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
    found = getattr(module, _NAME, None)
    if not isinstance(found, ToolFormat):
        raise StartupError(f"{path} must define {_NAME}, a ToolFormat; it is {type(found).__name__} there")
    return found
