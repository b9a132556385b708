"""The generated page names every setting, and what a person needs to set it."""

from __future__ import annotations

import pytest
from docs.configuration import document
from triptych_cli.stack.service_flags import SERVICES, settings_class


@pytest.fixture(scope="module")
def page() -> str:
    return document()


def section(page: str, heading: str) -> str:
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def row(page: str, heading: str, flag: str) -> list[str]:
    """Flag, type, default and meaning."""
    (found,) = [line for line in section(page, heading).splitlines() if line.startswith(f"| `{flag}` |")]
    return [cell.strip() for cell in found.replace(r"\|", "or").strip("|").split("|")]


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_has_a_row(page: str, service: str) -> None:
    headings = [service.capitalize(), "Every service", "Frontend, encoder and engine", "Frontend and encoder"]
    for name, info in settings_class(service).model_fields.items():
        # The service's own row, else that of all services.
        rows = [
            line for heading in headings for line in section(page, heading).splitlines() if f"`--{name.replace('_', '-')}`" in line
        ]
        assert rows, f"{service}'s {name} is missing"
        assert info.description, f"{service} does not describe {name}"
        assert " ".join(info.description.split()) in rows[0]


@pytest.mark.parametrize("service", SERVICES)
def test_each_section_says_how_variables_begin(page: str, service: str) -> None:
    assert f"`TRIPTYCH_{service.upper()}_`" in section(page, service.capitalize())


def test_types_ranges_and_defaults(page: str) -> None:
    assert row(page, "Engine", "--kv-cache-memory")[1:3] == ["bytes", "[computed](memory.md#how-the-kv-cache-is-sized)"]
    assert row(page, "Engine", "--kv-offloading-dir-size")[1:3] == ["bytes", "16 GiB"]
    assert row(page, "Encoder", "--cache-memory")[1] == "bytes"
    assert row(page, "Frontend and encoder", "--max-media-bytes")[1:3] == ["bytes, at most 32 MiB", "20 MiB"]
    assert row(page, "Engine", "--max-num-seqs")[1:3] == ["int, 1 to 4096", "256"]
    assert row(page, "Engine", "--max-step-ms")[1:3] == ["float, above 0", "70"]
    assert row(page, "Engine", "--quantization")[1:3] == ["`none` or `int8` or `int4`", "`none`"]
    assert row(page, "Gateway", "--access-log")[1:3] == ["bool", "on"]
    assert row(page, "Gateway", "--api-key")[1:3] == ["secret", ""]
    assert row(page, "Gateway", "--response-ttl-s")[1:3] == ["float, above 0, at most 31,622,400", "2,592,000"]


def test_flags_of_other_servers_are_together(page: str) -> None:
    text = section(page, "Flags of other servers")
    assert "| `--runner`, `--convert` | `--task` |" in text
    assert "| `--swap-space` | ignored: " in text
    assert "`--cpu-offload-gb` (`0`) | refused: weights are not offloaded |" in text


def test_the_page_does_not_depend_on_the_machine(page: str) -> None:
    assert row(page, "Frontend", "--num-tokenizer-threads")[2] == "4, or the cores if fewer"


def test_options_of_serve_are_there(page: str) -> None:
    assert "| `--engine-port` | int | gRPC port. Default: `50053`. |" in page
    assert "| `[NAME=]MODEL` | text, may be repeated |" in page
