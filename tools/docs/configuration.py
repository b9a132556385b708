"""Writes docs/configuration.md from the settings classes: `make docs`. With `--check` it only reports whether it is up to date."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from triptych_cli.main import serve
from triptych_cli.stack.foreign_flags import FOREIGN_FLAGS, ForeignFlag
from triptych_cli.stack.service_flags import SERVICES, settings_class
from triptych_common.media.limits import MediaLimitSettings
from triptych_common.settings import TARGETS_HELP, GrpcServiceSettings, ServiceSettings, parse_bytes

from .page import ROOT, write_or_check

FILE = ROOT / "docs" / "configuration.md"

#: Defaults that depend on the machine: (service, setting) -> text in the document.
_MACHINE_DEFAULTS = {
    ("frontend", "num_tokenizer_threads"): "4, or the cores if fewer",
    ("frontend", "num_media_threads"): "2, or the cores if fewer",
    ("engine", "kv_cache_memory"): "[computed](memory.md#how-the-kv-cache-is-sized)",
    ("engine", "memory_limit"): "[computed](memory.md#how-the-kv-cache-is-sized)",
}
#: Settings that several services inherit: title, introduction, class.
_SHARED = (
    ("Every service", "Variables begin with `TRIPTYCH_<SERVICE>_`.", ServiceSettings),
    ("Frontend, encoder and engine", "", GrpcServiceSettings),
    ("Frontend and encoder", "Limits of media. Set them alike for both: the frontend refuses first.", MediaLimitSettings),
)
_HEAD = """# Configuration

`make docs` writes this page from the settings classes. Behind a flag are its type and range, and its default.

- `triptych engine`, `encoder`, `frontend`, `gateway` take `--max-num-seqs 64`; a boolean is `--access-log` or
  `--no-access-log`.
- `triptych serve` takes `--engine.max-num-seqs 64`, [flags of its own](#triptych-serve), and
  [those of other servers](#flags-of-other-servers).
- The environment: `TRIPTYCH_ENGINE_MAX_NUM_SEQS=64`, the service and the flag, in capitals with `_`. A flag wins.

A number of bytes may have a unit: `512M`, `2GiB`. A list is separated by commas. Addresses have [these
forms](scaling.md#addresses). A URL with a password is better set by environment. A value out of range, an unknown flag and an
unknown `TRIPTYCH_<SERVICE>_*` variable end the start with a message that names them. Fair shares are those of
[tenants](access.md#shares).
"""
_ELSEWHERE = """## Other environment variables

- `TRIPTYCH_CACHE`: directory of models, kernels, results of load checks. Default `~/.cache/triptych`.
- `TRIPTYCH_CPU_ISA`: [instruction set](cpu.md) of engine and encoder. Default: the best.
- `TRIPTYCH_KERNEL_DIR`: directory of the engine's prebuilt CPU kernels. The container images set it.
- `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`: cache, token and offline mode of `huggingface_hub`.
- `TRIPTYCH_MODEL`, `TRIPTYCH_PORT`, `TRIPTYCH_GRPC_PORT`: model and published ports of `docker-compose.yml`.
- `PYTHON`, `VENV`, `MODEL`, `PORT`, `ARGS`: variables of `make`; `make help` lists the targets.
"""
_FOREIGN = """## Flags of other servers

`triptych serve` translates flags of vLLM, SGLang and llama.cpp that mean the same. A flag of Triptych for the same setting wins.
"""
_IGNORED = "Ignored, because they would change nothing, and named on standard error"
_REFUSED = "Refused with a line that says why, and what to use instead; with the values in brackets they are taken"


def document() -> str:
    """The whole page."""
    parts = [_HEAD, "## triptych serve\n", "\n".join(_serve_rows()) + "\n"]
    for title, text, cls in _SHARED:
        parts += [f"## {title}\n\n{text}\n" if text else f"## {title}\n", "\n".join(_setting_rows(cls, _shared(cls))) + "\n"]
    for service in reversed(SERVICES):
        cls = settings_class(service)
        prefix = str(cls.model_config.get("env_prefix", ""))
        parts.append(f"## {service.capitalize()}\n\nVariables begin with `{prefix}`.\n")
        parts.append("\n".join(_setting_rows(cls, _own(cls), service)) + "\n")
    return "\n".join([*parts, _FOREIGN, "\n".join(_foreign_rows()) + "\n", _ELSEWHERE])


def _own(cls: type[ServiceSettings]) -> list[str]:
    """The settings that a class declares itself and does not inherit."""
    return [name for name in cls.model_fields if name in cls.__annotations__]


def _shared(cls: type[ServiceSettings]) -> list[str]:
    """The settings of a base class, without the port, which each service declares itself."""
    return [name for name in _own(cls) if name != "port"]


def _serve_rows() -> Iterator[str]:
    for name, annotation in typing.get_type_hints(serve, include_extras=True).items():
        about = next((part for part in getattr(annotation, "__metadata__", ()) if hasattr(part, "help")), None)
        if about is None:  # the context, and the return type
            continue
        is_argument = isinstance(about, typer.models.ArgumentInfo)
        meaning = str(about.help).replace("  [default: ", " Default: `").replace("]", "`.")
        yield _item(f"`{about.metavar if is_argument else '--' + name.replace('_', '-')}` ({_kind(annotation)})", meaning)


def _foreign_rows() -> Iterator[str]:
    #: What a flag means here -> the flags.
    alike: dict[str, list[str]] = {}
    for written, flag in FOREIGN_FLAGS.items():
        # Triptych's own options, whose values alone differ.
        if flag.flags != (written.removeprefix("--"),) or written == "--model":
            neutral = f" ({', '.join(f'`{value}`' for value in flag.neutral)})" if flag.neutral and not flag.flags else ""
            service, _, name = flag.flags[0].partition(".") if len(flag.flags) == 1 else ("", "", "")
            meaning = f"the same of the {service}: `--{service}.*`" if f"--{name}" == written else _meaning(flag)
            alike.setdefault(meaning, []).append(f"`{written}`{neutral}")
    apart = {name: alike.pop(name) for name in (_IGNORED, _REFUSED)}
    yield from (_item(", ".join(flags), meaning) for meaning, flags in alike.items())
    yield from (f"\n{meaning}: {', '.join(flags)}." for meaning, flags in apart.items())


def _meaning(flag: ForeignFlag) -> str:
    if flag.is_noted:
        return _IGNORED
    if not flag.takes_value and flag.values:
        return f"`--{flag.values['true']}`"
    if flag.flags:
        return ", ".join("the argument `MODEL`" if name == "models" else f"`--{name}`" for name in flag.flags)
    return _REFUSED


def _setting_rows(cls: type[ServiceSettings], names: Iterable[str], service: str = "") -> Iterator[str]:
    for name in names:
        info = cls.model_fields[name]
        default = _MACHINE_DEFAULTS.get((service, name)) or _default(name, info)
        # A text and a switch are told by their defaults, if they have one.
        kind = "" if default and _type(info) in ("text", "bool") else _type(info)
        yield _item(f"`--{name.replace('_', '-')}` ({'; '.join(filter(None, (kind, default)))})", described(info))


def described(info: FieldInfo) -> str:
    """What a setting means, without what the head of the page says."""
    return (
        (info.description or "")
        .replace(f", {TARGETS_HELP}", "")
        .replace(" A URL with a password is better set by environment.", "")
    )


def _item(what: str, meaning: str) -> str:
    return " ".join(f"- {what}: {meaning}".split())


def _is_bytes(info: FieldInfo) -> bool:
    return any(getattr(part, "func", None) is parse_bytes for part in _metadata(info.annotation, info.metadata))


def _metadata(annotation: Any, outer: list[Any]) -> Iterator[Any]:
    """The constraints and validators of a field's type, and of types inside it."""
    yield from outer
    for part in getattr(annotation, "__metadata__", ()):
        # A Field inside Annotated carries its own constraints.
        yield from part.metadata if isinstance(part, FieldInfo) else [part]
    for inside in typing.get_args(annotation):
        if typing.get_origin(annotation) is not typing.Literal:
            yield from _metadata(inside, [])


def _type(info: FieldInfo) -> str:
    """A readable type, with its range."""
    bounds = {name: value for part in _metadata(info.annotation, info.metadata) for name, value in _bounds(part)}
    if _is_bytes(info):
        return f"bytes ≤{_size(bounds['le'])}" if "le" in bounds else "bytes"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    if "ge" in bounds and "le" in bounds:
        ranges = [f"{_number(bounds['ge'])}-{_number(bounds['le'])}"]
    else:
        ranges = [f"{signs[name]}{_number(value)}" for name, value in bounds.items()]
    return " ".join([_kind(info.annotation), *ranges])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000_000 else f"{value:g}"


def _size(value: float) -> str:
    """A number of bytes, in the largest unit that divides it."""
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    return next((f"{int(value) // size} {name}" for size, name in units if value % size == 0), f"{value} bytes")


def _bounds(part: Any) -> Iterator[tuple[str, float]]:
    for name in ("ge", "gt", "le", "lt"):
        if (value := getattr(part, name, None)) is not None:
            yield name, value


def _kind(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin is typing.Annotated:
        return _kind(args[0])
    if origin in (typing.Union, types.UnionType):
        return _kind(next(arg for arg in args if arg is not type(None)))
    if origin is list:
        return "text, repeatable"
    if origin is tuple:
        return "list"
    return {bool: "bool", int: "int", float: "float", Path: "path", SecretStr: "secret"}.get(annotation, "text")


def _default(name: str, info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        return _size(value) if _is_bytes(info) or name.endswith("_bytes") else _number(value)
    return f"`{','.join(value) if isinstance(value, tuple) else value}`"


if __name__ == "__main__":
    write_or_check(document(), FILE, __doc__, "settings")
