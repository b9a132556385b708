"""The directory of adapters: each of its subdirectories that has PEFT's files is one. Requests name adapters, never paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import InvalidRequestError, ModelNotFoundError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class AdapterFiles:
    """The files of an adapter."""

    name: str
    folder: Path
    #: What changes when a file is replaced.
    identity: tuple[tuple[int, int, int], ...]

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_FILE

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS_FILE


class LoraDirectory:
    """A directory that the operator allows. Adapters can be put there, replaced and removed at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """The adapters that are there, in order."""
        try:
            entries = [entry.name for entry in self._path.iterdir()]
        except OSError:
            return []
        return sorted(name for name in entries if self._is_there(name))

    def _is_there(self, name: str) -> bool:
        try:
            return bool(_NAME.fullmatch(name)) and (self._path / name / CONFIG_FILE).is_file()
        except OSError:  # e.g. a directory that this user may not read
            return False

    def files(self, name: str) -> AdapterFiles:
        """The files of the adapter of this name.

        Raises:
            ModelNotFoundError: there is none.
            InvalidRequestError: its weights are not in safetensors.
        """
        folder = self._path / name
        if not self._is_there(name):
            # Without the names of others: the caller's key may not know them.
            raise ModelNotFoundError(f"there is no adapter {name[:100]!r}", field="lora", value=name[:100])
        try:
            stats = [(folder / file).stat() for file in (CONFIG_FILE, WEIGHTS_FILE)]
        except OSError as error:
            raise InvalidRequestError(f"the adapter {name!r} has no {WEIGHTS_FILE}", field="lora", value=name) from error
        return AdapterFiles(name, folder, tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats))
