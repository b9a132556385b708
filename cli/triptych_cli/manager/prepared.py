"""A model whose files are on this machine, and the services that will run it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from triptych.errors import StartupError
from triptych_common.model.pooling import pooling_model
from triptych_common.model.store import is_encoder_decoder, served_name

from triptych_cli.errors import CommandError
from triptych_cli.manager.memory import Needs
from triptych_cli.models.fetch import fetch
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import needs_encoder, plan_model
from triptych_cli.stack.service import Service
from triptych_cli.stack.service_flags import ServiceArgs


@dataclass(frozen=True)
class Checkpoint:
    """A model's files, and what follows from them. `generates`: it answers with text. `transcribes`: to audio only."""

    options: ServeOptions
    generates: bool
    transcribes: bool
    with_encoder: bool
    needs: Needs

    @property
    def name(self) -> str:
        """The name that requests use."""
        return self.options.served_model_name or served_name(self.options.model)


@dataclass(frozen=True)
class Prepared(Checkpoint):
    """A model with its services, in start order."""

    services: list[Service]


def fetched(options: ServeOptions, given: ServiceArgs, console: Console) -> Checkpoint:
    """Fetch a model, and look at its files. Raises CommandError."""
    path: Path
    path, _ = fetch(options.model, console)
    try:
        pooling = pooling_model(path, options.task or "auto")
    except StartupError as error:
        raise CommandError(str(error)) from error
    # Bidirectional models read text alone.
    with_encoder = not (pooling and pooling.is_bidirectional) and needs_encoder(path, options, given)
    needs = Needs.of(path, options, given, with_encoder=with_encoder)
    return Checkpoint(options, pooling is None, is_encoder_decoder(path), with_encoder, needs)


def prepared(checkpoint: Checkpoint, given: ServiceArgs, memory: int | None) -> Prepared:
    """Plan the services of a model.

    Args:
        memory: what they may take, in bytes; None is what is free.
    """
    options = replace(checkpoint.options, memory=memory)
    services = plan_model(options, given, checkpoint.with_encoder)
    return Prepared(**{**vars(checkpoint), "options": options}, services=services)
