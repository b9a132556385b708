"""docs/anthropic.md names every field of the requests, in the section where it belongs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from triptych_gateway.schemas.common import NoOp
from triptych_gateway.schemas.messages.request import CountTokensRequest, MessagesRequest
from triptych_gateway.schemas.messages.tools import Tool

_PAGE = (Path(__file__).resolve().parents[3] / "docs" / "anthropic.md").read_text(encoding="utf-8")
_HONOURED = _PAGE.split("\n## Fields\n")[1].split("\n## Refused\n")[0]
_REFUSED = _PAGE.split("\n## Refused\n")[1].split("\n## ")[0]
#: Of tools: they change nothing, as their descriptions say.
_PLAIN = {"type", "eager_input_streaming"}


@pytest.mark.parametrize("schema", [MessagesRequest, CountTokensRequest, Tool])
def test_fields_are_in_the_section_where_they_belong(schema: type[BaseModel]) -> None:
    honoured, refused = (set(re.findall(r"`([a-z_]+)`", text)) for text in (_HONOURED, _REFUSED))
    for name, info in schema.model_fields.items():
        is_refused = any(isinstance(part, NoOp) for part in info.metadata)
        assert name in (refused if is_refused else honoured | _PLAIN), f"{schema.__name__}.{name} is missing in docs/anthropic.md"
        assert name not in (honoured if is_refused else refused)
