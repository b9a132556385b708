"""docs/openai.md names every field of the requests, in the section where it belongs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from triptych_gateway.schemas.chat import ChatCompletionRequest, ImageUrl, Message
from triptych_gateway.schemas.common import NoOp, StreamOptions
from triptych_gateway.schemas.completions import CompletionRequest

_PAGE = (Path(__file__).resolve().parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")
_HONOURED, _REST = _PAGE.split("\n## Refused\n")
_REFUSED = _REST.split("\n## ")[0]


def names(text: str) -> set[str]:
    """What stands in code, and its last part: `stream_options.include_usage` names include_usage."""
    code = re.findall(r"`([a-z_.]+)`", text)
    return {*code, *(name.rpartition(".")[2] for name in code), *(name.partition(".")[0] for name in code)}


@pytest.mark.parametrize("schema", [ChatCompletionRequest, CompletionRequest, Message, StreamOptions, ImageUrl])
def test_fields_are_in_the_section_where_they_belong(schema: type[BaseModel]) -> None:
    honoured, refused = names(_HONOURED), names(_REFUSED)
    for name, info in schema.model_fields.items():
        is_refused = any(isinstance(part, NoOp) for part in info.metadata)
        assert name in (refused if is_refused else honoured), f"{schema.__name__}.{name} is missing in docs/openai.md"


@pytest.mark.parametrize("schema", [ChatCompletionRequest, CompletionRequest])
def test_what_is_honoured_is_not_said_to_be_refused(schema: type[BaseModel]) -> None:
    honoured = {name for name, info in schema.model_fields.items() if not any(isinstance(part, NoOp) for part in info.metadata)}
    assert honoured.isdisjoint(names(_REFUSED))
