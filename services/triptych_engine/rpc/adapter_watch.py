"""Which adapters requests can name: told to sessions when adapters come, go, or are loaded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from triptych.v1 import common_pb2

from triptych_engine.runner.lora.directory import LoraDirectory

log = logging.getLogger(__name__)
#: Time between two looks into the directory, in seconds. A request finds an adapter without it.
_INTERVAL_S = 1.0


class AdapterWatch:
    """Keeps the adapters in a model's description.

    Args:
        model: the description.
        on_change: called after each change of it.
    """

    def __init__(self, directory: LoraDirectory, model: common_pb2.ModelInfo, on_change: Callable[[], None]) -> None:
        self._directory, self._model, self._on_change = directory, model, on_change
        self._digests: dict[str, str] = {}
        self._names: list[str] = []

    async def run(self) -> None:
        """Look into the directory until cancelled."""
        while True:
            try:
                self._names = await asyncio.to_thread(self._directory.names)
                self._digests = {name: digest for name, digest in self._digests.items() if name in self._names}
                self._tell()
            except Exception:
                log.exception("the directory of adapters cannot be followed")
            await asyncio.sleep(_INTERVAL_S)

    def loaded(self, name: str, digest: str) -> None:
        """An adapter was loaded, so that its digest is known."""
        self._digests[name] = digest
        if name not in self._names:
            self._names = sorted([*self._names, name])
        self._tell()

    def _tell(self) -> None:
        adapters = [common_pb2.Adapter(name=name, digest=self._digests.get(name, "")) for name in self._names]
        if adapters != list(self._model.adapters):
            del self._model.adapters[:]
            self._model.adapters.extend(adapters)
            self._on_change()
