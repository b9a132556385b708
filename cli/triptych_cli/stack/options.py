"""What `triptych serve` is asked for: models, and for each of them engines, task and so on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triptych_common.model.store import served_name

from triptych_cli.errors import CommandError

#: Several models have ports of their own: up to 16 services of a kind are 10 apart.
MAX_MODELS = 16


@dataclass(frozen=True)
class ServeOptions:
    """Options of `triptych serve`; None means the service's own default, or that nothing is wanted."""

    model: str
    #: Of several models on this machine: which one it is, counted from 0, and its name; of a single one the name is empty.
    number: int = 0
    group: str = ""
    #: Bytes that all services of the model may take; None is what is free.
    memory: int | None = None
    host: str | None = None
    port: int | None = None
    grpc_port: int | None = None
    frontend_port: int | None = None
    encoder_port: int | None = None
    engine_port: int | None = None
    engines: int = 1
    #: So many of the engines compute long prompts, and the others decode.
    prefill_engines: int = 0
    encoders: int = 1
    frontends: int = 1
    served_model_name: str | None = None
    max_model_len: int | None = None
    quantization: str | None = None
    task: Literal["auto", "generate", "embed"] | None = None
    log_level: str | None = None
    log_format: str | None = None
    #: Directory with one directory of certificates for each service.
    certs: Path | None = None
    otlp_traces_endpoint: str | None = None
    ready_fd: int | None = None
    parent_pid: int | None = None

    def flags(self, service: str) -> dict[str, object]:
        """The flags of one service that follow from these options."""
        common = {
            "--log-level": self.log_level,
            "--log-format": self.log_format,
            "--tls-dir": self.certs / service if self.certs is not None else None,
            "--otlp-traces-endpoint": self.otlp_traces_endpoint,
        }
        model = {"--model": self.model, "--served-model-name": self.served_model_name, "--max-model-len": self.max_model_len}
        own: dict[str, dict[str, object]] = {
            "engine": {**model, "--port": self.engine_port, "--quantization": self.quantization, "--task": self.task},
            "encoder": {**model, "--port": self.encoder_port},
            "frontend": {**model, "--port": self.frontend_port, "--task": self.task},
            "gateway": {"--host": self.host, "--port": self.port, "--grpc-port": self.grpc_port},
        }
        return {**common, **own[service]}

    def num_replicas(self, service: str) -> int:
        """Number of instances of a service to start."""
        return {"engine": self.engines, "encoder": self.encoders, "frontend": self.frontends}.get(service, 1)


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
            raise ValueError(f"a number from {least} to {most}" if most is not None else f"a number of at least {least}")
        return int(value)

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return parse


#: Options that may be given for one of several models, as NAME=VALUE -> how their values are read.
_BY_MODEL: dict[str, Callable[[str], Any]] = {
    "engines": _number(1, 64),
    "prefill_engines": _number(0, 63),
    "max_model_len": _number(1),
    "quantization": _one_of("none", "int8", "int4"),
    "task": _one_of("auto", "generate", "embed"),
}


def options_of_models(
    models: Sequence[str], common: ServeOptions, by_model: Mapping[str, Sequence[str] | None]
) -> list[ServeOptions]:
    """The options of each model.

    Args:
        models: each is a directory, a GGUF file, a built-in name or a hub id, or NAME= and one of these.
        common: what all of them have in common.
        by_model: field of ServeOptions -> what was given: a value for all models, or NAME=VALUE.

    Raises:
        CommandError: a name is taken or unknown, or a value makes no sense.
    """
    named = [_named(model) for model in models]
    names = [name or served_name(model) for name, model in named]
    if len(models) > 1 and common.served_model_name is not None:
        raise CommandError("--served-model-name is for one model; with several, write NAME=MODEL", exit_code=2)
    if len(models) > MAX_MODELS:
        raise CommandError(f"{len(models)} models are more than {MAX_MODELS}", exit_code=2)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CommandError(f"two models have the name {twice}; write NAME=MODEL for one of them", exit_code=2)
    values = {field: _values(field, given or (), names) for field, given in by_model.items()}
    return [
        dataclasses.replace(
            common,
            model=model,
            number=number,
            group=names[number] if len(models) > 1 else "",
            served_model_name=name or common.served_model_name,
            **{field: of_field[number] for field, of_field in values.items() if of_field[number] is not None},
        )
        for number, (name, model) in enumerate(named)
    ]


def _named(text: str) -> tuple[str | None, str]:
    """The name in NAME=MODEL, if there is one, and the model."""
    name, equals, model = text.partition("=")
    return (None, text) if not equals or Path(text).exists() else (name, model)


def _values(field: str, given: Sequence[str], names: Sequence[str]) -> list[Any]:
    """The values of an option for each of the models; None where nothing was given. Raises CommandError."""
    flag = f"--{field.replace('_', '-')}"
    values: list[Any] = [None] * len(names)
    for text in given:
        name, equals, value = text.rpartition("=")
        if equals and name not in names:
            raise CommandError(f"{flag} {text}: no model {name!r} here; there are: {', '.join(names)}", exit_code=2)
        try:
            parsed = _BY_MODEL[field](value)
        except ValueError as error:
            raise CommandError(f"{flag}: {value!r} is not {error}", exit_code=2) from None
        for number in [names.index(name)] if equals else range(len(names)):
            values[number] = parsed
    return values
