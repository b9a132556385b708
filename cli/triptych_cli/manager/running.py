"""The models and the gateway of one `triptych serve`, while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from triptych.errors import InvalidRequestError
from triptych_common.host.memory import usable_memory
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

from triptych_cli.errors import CommandError
from triptych_cli.manager.manager import ModelManager
from triptych_cli.manager.memory import shares
from triptych_cli.manager.model import Model, State
from triptych_cli.manager.prepared import Checkpoint, Prepared, fetched, prepared
from triptych_cli.manager.processes import ModelProcesses
from triptych_cli.manager.servicer import ModelManagerServicer, serve_manager
from triptych_cli.stack.options import MAX_MODELS
from triptych_cli.stack.plan import PROCESS_BYTES, plan_gateway
from triptych_cli.stack.ports import check_ports
from triptych_cli.stack.service import Service, port_claims
from triptych_cli.stack.service_flags import ServiceArgs
from triptych_cli.stack.supervisor import ServiceFailedError, Supervisor

_STOP_GRACE_S = 1.0
#: How long a request waits for services that start again, in seconds.
_RESTART_S = 60


class Running:
    """Plans the services of models, and runs them.

    Args:
        models: those to start with.
        given: flags for single services.
        budget: memory of all models together, in bytes. None is what is free, for several; a single one takes what it wants.
        folder: for the socket of the manager, and the file with the frontends' addresses.
    """

    def __init__(
        self, models: Sequence[Checkpoint], given: ServiceArgs, budget: int | None, folder: Path, console: Console
    ) -> None:
        if budget is None and len(models) > 1:
            budget = usable_memory().available
        parts = [None] * len(models) if budget is None else shares(budget, [model.needs for model in models])
        self.models = [prepared(model, given, part) for model, part in zip(models, parts, strict=True)]
        self._common, self._given, self._console = models[0].options, given, console
        self._socket, self._frontends_file = folder / "manager.sock", folder / "frontends"
        self._frontends = {model.name: _frontends(model) for model in self.models}
        self._write_frontends()
        flags = {
            "--frontend-addresses": f"file:{self._frontends_file}",
            "--model-manager": self._socket,
            # Of several models, one whose services start again does not end the suite.
            "--model-wait-s": _RESTART_S if len(models) > 1 else None,
        }
        self.gateway = plan_gateway(self._common, given, self.services, flags)
        self._manager = ModelManager(None if budget is None else budget - PROCESS_BYTES)
        #: Number of a model -> its name; empty while it is being loaded.
        self._numbers = {model.options.number: model.name for model in self.models}
        self._loads: set[asyncio.Task[Model]] = set()
        asleep = PROCESS_BYTES + sum(model.needs.asleep for model in models)
        for model in self.models if budget is not None else ():
            least = asleep + model.needs.least - model.needs.asleep
            if least > (budget or 0):
                beside = " beside the others, asleep" if len(models) > 1 else ""
                raise CommandError(
                    f"--memory: {model.name} needs {-(-least >> 20)}M at least{beside}; given: {(budget or 0) >> 20}M"
                )

    @property
    def services(self) -> list[Service]:
        """Those of the models to start with."""
        return [service for model in self.models for service in model.services]

    async def main(self, supervisor: Supervisor, on_ready: Callable[[float], None]) -> None:
        """Start the models, and administer them until cancelled.

        Args:
            on_ready: called when all are ready, or have failed, with the seconds that it took.

        Raises:
            ServiceFailedError: none of several models can be used.
        """
        start_s, certs = time.monotonic(), self._common.certs
        self._supervisor, self._tls = supervisor, Tls.of(certs / Role.OPERATOR if certs is not None else None, Role.OPERATOR)
        server = await serve_manager(ModelManagerServicer(self._manager, self._load), self._socket)
        try:
            await self._manager.start([self._model_of(model) for model in self.models])
            failed = [model for model in self._manager.models if model.state == State.MODEL_STATE_FAILED]
            if len(failed) == len(self.models):
                raise ServiceFailedError(f"no model can be used: {failed[0].error}", [])
            await supervisor.until_ready({self.gateway.name})
            on_ready(time.monotonic() - start_s)
            await self._manager.watch()
        finally:
            for task in self._loads:
                task.cancel()
            await self._manager.close()
            await server.stop(_STOP_GRACE_S)

    def _model_of(self, model: Prepared) -> Model:
        def on_change(frontends: list[str]) -> None:
            self._frontends[model.name] = frontends
            self._write_frontends()

        processes = ModelProcesses(model.services, self._supervisor, self._tls, on_change)
        # Without a budget nobody counts, and the engine takes what it finds.
        awake, asleep = (0, 0) if self._manager.budget is None else (model.options.memory or 0, model.needs.asleep)
        return Model(model.name, model.options.model, awake, asleep, processes)

    async def _load(self, source: str, name: str, num_engines: int) -> Model:
        """Fetch, plan and start a further model, also if the caller leaves. Raises TriptychError."""
        task = asyncio.create_task(self._load_whole(source, name, num_engines), name=f"loading {source}")
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _load_whole(self, source: str, name: str, num_engines: int) -> Model:
        there = {model.name for model in self._manager.models}
        self._numbers = {number: loaded for number, loaded in self._numbers.items() if not loaded or loaded in there}
        numbers = set(range(MAX_MODELS)) - self._numbers.keys()
        if not numbers:
            raise InvalidRequestError(f"{MAX_MODELS} models are the most", limit=MAX_MODELS)
        number = min(numbers)
        self._numbers[number] = ""
        try:
            # Fetching may take long.
            prepared = await asyncio.to_thread(self._prepare, source, name, number, num_engines)
            model = await self._manager.load(self._model_of(prepared))
            self._numbers[number] = model.name
        finally:
            if not self._numbers[number]:
                del self._numbers[number]
        return model

    def _prepare(self, source: str, name: str, number: int, num_engines: int) -> Prepared:
        """Fetch and plan a further model. Raises InvalidRequestError."""
        options = replace(
            self._common, model=source, served_model_name=name or None, number=number, engines=num_engines, task=None,
            max_model_len=None, quantization=None,
        )  # fmt: skip
        try:
            checkpoint = fetched(options, self._given, self._console)
            checkpoint = replace(checkpoint, options=replace(options, group=checkpoint.name))
            budget = self._manager.budget
            model = prepared(checkpoint, self._given, None if budget is None else checkpoint.needs.least)
            check_ports(port_claims(model.services))
        except CommandError as error:
            raise InvalidRequestError(str(error), field="source") from error
        return model

    def _write_frontends(self) -> None:
        """At once, as its readers may look at any moment."""
        new = self._frontends_file.with_suffix(".new")
        new.write_text("".join(f"{address}\n" for addresses in self._frontends.values() for address in addresses))
        new.replace(self._frontends_file)


def _frontends(model: Prepared) -> list[str]:
    return [service.address for service in model.services if service.kind == "frontend"]
