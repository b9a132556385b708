"""docker-compose.yml and its further files, without containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from triptych_encoder.settings import EncoderSettings
from triptych_engine.settings import EngineSettings
from triptych_frontend.settings import FrontendSettings
from triptych_gateway.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[3]
FILES = [ROOT / "docker-compose.yml", *(ROOT / "compose" / name for name in ("certificates.yaml", "keys.yaml"))]
SETTINGS = {"gateway": GatewaySettings, "frontend": FrontendSettings, "encoder": EncoderSettings, "engine": EngineSettings}


def services(path: Path) -> dict[str, dict[str, Any]]:
    """Our own services in a file, those of the profile `gpu` among them."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["services"]
    return {name: service for name, service in found.items() if kind(name) in SETTINGS}


def kind(name: str) -> str:
    return name.removesuffix("-gpu")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_variables_of_a_service_are_settings_of_it(path: Path) -> None:
    for name, service in services(path).items():
        prefix = f"TRIPTYCH_{kind(name).upper()}_"
        given = {variable for variable in service["environment"] if variable.startswith("TRIPTYCH_")}
        assert given <= {prefix + field.upper() for field in SETTINGS[kind(name)].model_fields}


def test_every_service_gets_its_own_certificate() -> None:
    secured = services(FILES[1])
    assert secured.keys() == services(FILES[0]).keys()
    for name, service in secured.items():
        prefix = f"TRIPTYCH_{kind(name).upper()}_"
        plaintext = {} if name == "gateway" else {f"{prefix}INSECURE_GRPC": "false"}
        assert service["environment"] == {f"{prefix}TLS_DIR": "/etc/triptych/tls"} | plaintext
        assert service["volumes"] == [f"${{TRIPTYCH_CERTS:-./certs}}/{kind(name)}:/etc/triptych/tls:ro"]


def image_environment(target: str) -> dict[str, str]:
    """What a target of the Dockerfile sets itself."""
    (stage,) = re.findall(
        rf"^FROM base AS {target}\n(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL
    )
    return dict(re.findall(r"\b(TRIPTYCH_[A-Z_]+)=(\S+)", "\n".join(re.findall(r"^ENV (.*)$", stage, re.MULTILINE))))


def test_no_image_opens_grpc_without_tls_by_itself() -> None:
    suite = image_environment("suite")
    assert suite["TRIPTYCH_GATEWAY_HOST"] == "0.0.0.0"
    assert not {name for name in suite if name.endswith(("INSECURE_GRPC", "_TLS_DIR"))}
    for service in ("frontend", "encoder", "engine"):
        assert f"TRIPTYCH_{service.upper()}_HOST" not in suite, "gRPC stays on the container's loopback"
        alone = image_environment(service)
        assert alone[f"TRIPTYCH_{service.upper()}_HOST"] == "0.0.0.0"
        assert f"TRIPTYCH_{service.upper()}_INSECURE_GRPC" not in alone, "who runs the image decides"


@pytest.mark.parametrize("name", ["engine", "encoder", "frontend", "engine-gpu", "encoder-gpu"])
def test_compose_starts_each_service_with_and_without_certificates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's environment and each file's make settings that the service accepts."""
    for variable, value in image_environment(kind(name)).items():
        monkeypatch.setenv(variable, value)
    for path in FILES[:2]:
        for variable, value in services(path)[name]["environment"].items():
            if value is not None and variable.startswith("TRIPTYCH_"):
                monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
        settings: Any = SETTINGS[kind(name)]()
        assert settings.insecure_grpc == (path is FILES[0])
        assert settings.has_tls == (path is FILES[1])


def test_each_variable_of_the_example_is_used() -> None:
    example = set(re.findall(r"^#([A-Z_]+)=", (ROOT / "compose" / "env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\b[A-Z][A-Z_]+\b", "".join(path.read_text() for path in FILES)))
    assert example
    assert example - used == {"COMPOSE_FILE", "COMPOSE_PROFILES"}, "those of docker compose itself"


def test_every_service_can_send_spans_to_a_collector_that_wants_a_key() -> None:
    for service in services(FILES[0]).values():
        assert {variable.rpartition("_OTLP_")[2] for variable in service["environment"] if "_OTLP_" in variable} == {
            "TRACES_ENDPOINT",
            "HEADERS",
        }


def test_prometheus_has_a_key_for_the_gateway() -> None:
    (gateway,) = (
        job
        for job in yaml.safe_load((ROOT / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
        if job["job_name"] == "gateway"
    )
    mounts = yaml.safe_load(FILES[0].read_text())["services"]["prometheus"]["volumes"]
    key = gateway["authorization"]["credentials_file"]
    (source,) = (mount.removesuffix(f":{key}:ro") for mount in mounts if mount.endswith(f":{key}:ro"))
    assert source == "${TRIPTYCH_OPERATOR_KEY_FILE:-./compose/no-key}"
    assert (ROOT / "compose" / "no-key").read_text() == ""
