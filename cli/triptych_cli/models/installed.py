"""The models on this machine: which there are, and how they are removed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text
from triptych_common.host.cache import cache_dir
from triptych_common.model.store import BUILTIN_MODELS, builtin_dir

from triptych_cli.errors import CommandError
from triptych_cli.models.prepare_gguf import GGUF_NAME
from triptych_cli.printable import printable


@dataclass(frozen=True)
class InstalledModel:
    """A model on this machine.

    Attributes:
        name: what `triptych serve` takes.
        source: built-in, gguf or hub.
        num_bytes: what is freed when it is removed.
    """

    name: str
    source: str
    num_bytes: int
    path: Path


def installed() -> list[InstalledModel]:
    """All of them, by name."""
    return sorted([*_builtin(), *_gguf(), *_hub()], key=lambda model: model.name)


def remove(names: Sequence[str]) -> list[InstalledModel]:
    """Remove models. Raises CommandError, before anything is removed, if one is not there; and if it cannot be removed."""
    known = installed()
    if missing := [name for name in names if name not in {model.name for model in known}]:
        raise CommandError(f"{', '.join(missing)} is not on this machine; `triptych list` lists what is")
    # A GGUF file whose content has changed was prepared more than once.
    models = [model for model in known if model.name in names]
    for model in models:
        try:
            shutil.rmtree(model.path)
        except OSError as error:
            raise CommandError(f"cannot remove {model.path}: {error.strerror or error}") from error
    return models


def table(models: Sequence[InstalledModel]) -> Table:
    """What `triptych list` prints."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("MODEL", overflow="fold")
    shown.add_column("SOURCE")
    shown.add_column("SIZE", justify="right")
    for model in models:
        shown.add_row(Text(printable(model.name)), model.source, f"{model.num_bytes / 1e6:,.0f} MB")
    return shown


def _builtin() -> list[InstalledModel]:
    paths = {name: builtin_dir(model) for name, model in BUILTIN_MODELS.items()}
    return [InstalledModel(name, "built-in", _size(path), path) for name, path in paths.items() if path.is_dir()]


def _gguf() -> list[InstalledModel]:
    """What was prepared for GGUF files. Named by the file, which may be gone."""
    # Before Python 3.12, `*/model.gguf` does not find links whose file is gone.
    folders = [folder for folder in (cache_dir() / "gguf").glob("*") if (folder / GGUF_NAME).is_symlink()]
    return [InstalledModel(str((folder / GGUF_NAME).readlink()), "gguf", _size(folder), folder) for folder in folders]


def _hub() -> list[InstalledModel]:
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:  # a machine with a gateway alone
        return []
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    of_models = [one for one in repositories if one.repo_type == "model"]
    return [InstalledModel(one.repo_id, "hub", one.size_on_disk, Path(one.repo_path)) for one in of_models]


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
