"""Writes helm/triptych/values.schema.json: the chart's own values, and the services' settings, by their classes.

Part of `make docs`. With `--check` it only reports whether the file is up to date.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from triptych_cli.stack.service_flags import SERVICES, settings_class
from triptych_common.settings import ServiceSettings, parse_bytes

from tools.docs.page import ROOT, write_or_check

CHART = ROOT / "helm" / "triptych"
FILE = CHART / "values.schema.json"
_BASE = Path(__file__).with_name("values.schema.yaml")

#: Settings that the chart determines, because other objects must agree with them. `models` and other values stand for some of them.
OWNED = frozenset(
    (
        *(
            "port",
            "grpc_port",
            "control_port",
            "health_port",
            "metrics_port",
            "tls_dir",
            "insecure_grpc",
            "https_dir",
            "api_keys_file",
            "load_metrics_without_key",
            "files_dir",
        ),
        *("frontend_addresses", "engine_addresses", "encoder_addresses"),
        *("kv_role", "kv_peer_addresses"),
        *("model", "served_model_name", "task", "max_model_len"),
    )
)
_SIZE = r"^[0-9]+(\.[0-9]+)?\s*[KMGTkmgt]?([iI]?[bB])?$"
#: Keys of pydantic's schema that say what is allowed. Defaults are left out: some depend on the machine.
_KEPT = ("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "pattern", "items")


def schema() -> dict[str, Any]:
    """The whole schema."""
    base: dict[str, Any] = yaml.safe_load(_BASE.read_text(encoding="utf-8"))
    common = base["definitions"].pop("component")
    filled: dict[str, Any] = _filled(base, common)
    for service in reversed(SERVICES):
        settings = _settings(settings_class(service))
        names = sorted({*settings, *_secrets(settings_class(service))})
        secrets = {name: {"$ref": "#/definitions/secret"} for name in names}
        filled["definitions"][f"{service}Settings"] = {"type": "object", "properties": settings}
        filled["definitions"][f"{service}SecretSettings"] = {"type": "object", "properties": secrets}
    filled["definitions"]["settings"] = {"type": "object", "properties": _common_settings()}
    return typing.cast(dict[str, Any], _closed(filled))


def _common_settings() -> dict[str, Any]:
    """The settings that every service has."""
    classes = [_settings(settings_class(service)) for service in SERVICES]
    shared = set.intersection(*(set(found) for found in classes)) & {*ServiceSettings.model_fields}
    return {name: about for name, about in classes[0].items() if name in shared}


def _settings(cls: type[ServiceSettings]) -> dict[str, Any]:
    """The schemas of the settings that may be in `settings`: neither the chart's own nor secret."""
    properties = cls.model_json_schema()["properties"]
    fields = {name: info for name, info in cls.model_fields.items() if name not in OWNED and name not in _secrets(cls)}
    return {name: _setting(info, properties[name]) for name, info in fields.items()}


def _setting(info: FieldInfo, found: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one setting. A value that may be absent is of its type when it is there."""
    options = [option for option in found.get("anyOf", [found]) if option.get("type") != "null"]
    kept = {key: value for key, value in options[0].items() if key in _KEPT}
    if any(getattr(part, "func", None) is parse_bytes for part in _metadata(info)):
        kept |= {"type": ["integer", "string"], "pattern": _SIZE}
    return {**kept, "description": " ".join((info.description or "").split())}


def _secrets(cls: type[ServiceSettings]) -> list[str]:
    """The settings whose values are secret."""
    return [name for name, info in cls.model_fields.items() if SecretStr in _types(info.annotation)]


def _metadata(info: FieldInfo) -> Iterator[Any]:
    yield from info.metadata
    for part in _types(info.annotation):
        yield from getattr(part, "__metadata__", ())


def _types(annotation: Any) -> list[Any]:
    """A type, and the types inside it."""
    inside = [] if typing.get_origin(annotation) is typing.Literal else typing.get_args(annotation)
    return [annotation, *(found for part in inside for found in _types(part))]


def _filled(node: Any, common: Mapping[str, Any]) -> Any:
    """The base, with `$component: ROLE` and `$setting: SERVICE.NAME` replaced by what they stand for."""
    if isinstance(node, list):
        return [_filled(item, common) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(setting := node.get("$setting"), str):
        service, _, name = setting.partition(".")
        cls = settings_class(service)
        return _setting(cls.model_fields[name], cls.model_json_schema()["properties"][name])
    found = {key: _filled(value, common) for key, value in node.items() if key != "$component"}
    if role := node.get("$component"):
        settings = {"$ref": f"#/definitions/{role}Settings"}, {"$ref": f"#/definitions/{role}SecretSettings"}
        found = {**common, "settings": settings[0], "secretSettings": settings[1], **found}
    return found


def _closed(node: Any) -> Any:
    """Objects take the named properties and no others. `propertyNames` rather than `additionalProperties`, because Helm's message
    then has the allowed names."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _closed(value) for key, value in node.items()}
    if isinstance(names := node.get("properties"), dict) and node.get("type") == "object":
        found["propertyNames"] = {"enum": sorted(names)}
    return found


def document() -> str:
    """The file's text."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    write_or_check(document(), FILE, __doc__, "settings or tools/helm/values.schema.yaml")
