"""Settings from flags and environment."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError
from pydantic_settings import CliApp
from triptych_gateway.settings import GatewaySettings


@pytest.mark.parametrize(("value", "origins"), [("*", ("*",)), ("http://a, http://b", ("http://a", "http://b")), ("", ())])
def test_origins_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch, value: str, origins: tuple[str, ...]) -> None:
    monkeypatch.setenv("TRIPTYCH_GATEWAY_CORS_ALLOW_ORIGINS", value)
    assert GatewaySettings().cors_allow_origins == origins
    monkeypatch.delenv("TRIPTYCH_GATEWAY_CORS_ALLOW_ORIGINS")
    assert CliApp.run(GatewaySettings, cli_args=[f"--cors-allow-origins={value}"]).cors_allow_origins == origins


def test_flags_win_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_GATEWAY_PORT", "1234")
    assert GatewaySettings().port == 1234
    assert CliApp.run(GatewaySettings, cli_args=["--port", "5678"]).port == 5678


@pytest.mark.parametrize("name", ["TRIPTYCH_GATEWAY_PROT", "TRIPTYCH_GATEWAY_MAX_BODY"])
def test_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValidationError, match=name):
        GatewaySettings()


def test_key_does_not_show() -> None:
    settings = GatewaySettings(api_key="hidden-key")  # type: ignore[arg-type]
    assert "hidden-key" not in repr(settings) + settings.model_dump_json()
    with pytest.raises(ValidationError):
        GatewaySettings(api_key="")  # type: ignore[arg-type]


def test_no_heavy_libraries_are_loaded() -> None:
    heavy = ("torch", "transformers", "numpy", "tokenizers")
    code = f"import sys, triptych_gateway.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
