"""The generated page names every setting, and what a person needs to set it."""

from __future__ import annotations

import pytest
from docs.configuration import described, document
from triptych_cli.stack.service_flags import SERVICES, settings_class


@pytest.fixture(scope="module")
def page() -> str:
    return document()


def section(page: str, heading: str) -> str:
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def about(page: str, heading: str, flag: str) -> str:
    """What stands in brackets behind a flag: type; default."""
    (found,) = [line for line in section(page, heading).splitlines() if line.startswith(f"- `{flag}` (")]
    return found.removeprefix(f"- `{flag}` (").split("): ")[0]


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_there(page: str, service: str) -> None:
    headings = [service.capitalize(), "Every service", "Frontend, encoder and engine", "Frontend and encoder"]
    for name, info in settings_class(service).model_fields.items():
        # The service's own line, else that of all services.
        rows = [
            line
            for heading in headings
            for line in section(page, heading).splitlines()
            if line.startswith(f"- `--{name.replace('_', '-')}` (")
        ]
        assert rows, f"{service}'s {name} is missing"
        assert info.description, f"{service} does not describe {name}"
        assert rows[0].endswith(": " + " ".join(described(info).split()))


@pytest.mark.parametrize("service", SERVICES)
def test_each_section_says_how_variables_begin(page: str, service: str) -> None:
    assert f"`TRIPTYCH_{service.upper()}_`" in section(page, service.capitalize())


def test_types_ranges_and_defaults(page: str) -> None:
    assert about(page, "Engine", "--kv-cache-memory") == "bytes; [computed](memory.md#how-the-kv-cache-is-sized)"
    assert about(page, "Engine", "--kv-offloading-dir-size") == "bytes; 16 GiB"
    assert about(page, "Encoder", "--cache-memory") == "bytes; 1 GiB"
    assert about(page, "Frontend and encoder", "--max-media-bytes") == "bytes ≤32 MiB; 20 MiB"
    assert about(page, "Engine", "--max-num-seqs") == "int 1-4096; 256"
    assert about(page, "Engine", "--max-step-ms") == "float ≥0; 70"
    assert about(page, "Engine", "--quantization") == "`none`, `int8`, `int4`; `none`"
    assert about(page, "Gateway", "--access-log") == "on"
    assert about(page, "Gateway", "--api-key") == "secret"
    assert about(page, "Gateway", "--response-ttl-s") == "float >0 ≤31,622,400; 2,592,000"


def test_flags_of_other_servers_are_together(page: str) -> None:
    text = section(page, "Flags of other servers")
    assert "\n- `--runner`, `--convert`: `--task`\n" in text
    ignored, refused = (next(line for line in text.splitlines() if line.startswith(word)) for word in ("Ignored", "Refused"))
    assert "`--swap-space`" in ignored
    assert "`--cpu-offload-gb` (`0`), " in refused


def test_the_page_does_not_depend_on_the_machine(page: str) -> None:
    assert about(page, "Frontend", "--num-tokenizer-threads").endswith("; 4, or the cores if fewer")


def test_options_of_serve_are_there(page: str) -> None:
    assert "\n- `--engine-port` (int): gRPC port. Default: `50053`.\n" in page
    assert "\n- `[NAME=]MODEL` (text, repeatable): " in page
