"""The generated page names every setting, and what a person needs to set it."""

from __future__ import annotations

import pytest
from docs.configuration import document
from triptych_cli.stack.service_flags import SERVICES, settings_class


@pytest.fixture(scope="module")
def page() -> str:
    return document()


def row(page: str, variable: str) -> list[str]:
    (found,) = [line for line in page.splitlines() if f"| `{variable}` |" in line]
    return [cell.strip() for cell in found.replace(r"\|", "or").strip("|").split("|")]


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_has_a_row(page: str, service: str) -> None:
    for name, info in settings_class(service).model_fields.items():
        # The service's own row, else that of all services.
        rows = [
            line
            for owner in (service.upper(), "<SERVICE>")
            for line in page.splitlines()
            if f"`TRIPTYCH_{owner}_{name.upper()}`" in line
        ]
        assert rows, f"{service}'s {name} is missing"
        assert f"`--{name.replace('_', '-')}`" in rows[0]
        assert info.description, f"{service} does not describe {name}"
        assert " ".join(info.description.split()) in rows[0]


def test_types_ranges_and_defaults(page: str) -> None:
    assert row(page, "TRIPTYCH_ENGINE_KV_CACHE_MEMORY")[2:4] == ["bytes", ""]
    assert row(page, "TRIPTYCH_ENCODER_CACHE_MEMORY")[2] == "bytes"
    assert row(page, "TRIPTYCH_<SERVICE>_MAX_MEDIA_BYTES")[2:4] == ["bytes, at most 32 MiB", "20 MiB"]
    assert row(page, "TRIPTYCH_ENGINE_MAX_NUM_SEQS")[2:4] == ["int, 1 to 4096", "256"]
    assert row(page, "TRIPTYCH_ENGINE_MAX_STEP_MS")[2:4] == ["float, above 0", "70"]
    assert row(page, "TRIPTYCH_ENGINE_QUANTIZATION")[2:4] == ["`none` or `int8` or `int4`", "`none`"]
    assert row(page, "TRIPTYCH_GATEWAY_ACCESS_LOG")[2:4] == ["bool", "on"]
    assert row(page, "TRIPTYCH_GATEWAY_API_KEY")[2:4] == ["secret", ""]


def test_the_page_does_not_depend_on_the_machine(page: str) -> None:
    assert row(page, "TRIPTYCH_FRONTEND_NUM_TOKENIZER_THREADS")[3] == "4, or the cores if fewer"


def test_options_of_serve_are_there(page: str) -> None:
    assert "| `--engine-port` | int | gRPC port. Default: `50053`. |" in page
    assert "| `[NAME=]MODEL` | text, may be repeated |" in page
