"""Targets are checked where settings are read, so that a wrong one stops the start and is named."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError
from triptych_cli.stack.service_flags import settings_class
from triptych_common.targets import parse_target

USERS = [
    ("gateway", "frontend_addresses"),
    ("frontend", "engine_addresses"),
    ("frontend", "encoder_addresses"),
    ("engine", "encoder_addresses"),
]
TARGETS = {
    "10.0.0.7:50053": ("", "10.0.0.7:50053"),
    "[::1]:3": ("", "[::1]:3"),
    "[fe80::1%eth0]:3": ("", "[fe80::1%eth0]:3"),
    "dns:encoders:1": ("dns", "encoders:1"),
    "static:encoders:1": ("static", "encoders:1"),
    "file:/etc/triptych/encoders": ("file", "/etc/triptych/encoders"),
    "file:/a folder/encoders:50052": ("file", "/a folder/encoders:50052"),
    "file:50052": ("", "file:50052"),  # a host of this name
}


@pytest.mark.parametrize("target", TARGETS)
def test_the_forms_of_a_target(target: str) -> None:
    assert parse_target(target) == TARGETS[target]


@pytest.mark.parametrize(("service", "setting"), USERS)
def test_each_service_takes_all_forms(service: str, setting: str) -> None:
    settings = settings_class(service).model_validate({setting: ", ".join(TARGETS)})
    assert getattr(settings, setting) == tuple(TARGETS)


@pytest.mark.parametrize("service", ["gateway", "frontend", "engine"])
@pytest.mark.parametrize(
    "target",
    [
        "encoders",
        "encoders:",
        ":1",
        "a b:1",
        "encoders:0",
        "encoders:99999",
        "dns:encoders",
        "http://encoders:1",
        "file:addresses",
        "[::1:80",
        "::1]:80",
        "[encoders]:80",
        "user@encoders:80",
        "dns:///encoders:1",
    ],
)
def test_what_is_no_target_is_refused_and_named(service: str, target: str) -> None:
    setting = dict(USERS)[service]
    with pytest.raises(ValidationError, match=rf"{setting}\n.*'{re.escape(target)}' is not host:port, .* or valkey://host:port"):
        settings_class(service).model_validate({setting: target})
