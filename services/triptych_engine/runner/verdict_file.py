"""Keeps verdicts on disk, so that an engine on a CPU starts without the checks that passed when it last started with the same
model.

The checks compute the same on the same files, code, kernels, libraries, settings and processor. If any of these has changed, all
are made again. Sizes and times of files stand for their contents, as in `make`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triptych_common
from triptych_common.host.cache import cache_dir
from triptych_common.host.cpu import cpu_features, isas_of_this_cpu

import triptych_engine
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.recurrent.step import StateShape
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Of RunnerConfig: how much memory there is decides about the number of blocks, which is found out anew, and about nothing else.
_MEMORY = frozenset({"kv_cache_bytes", "memory_limit", "memory_utilization", "reserved_bytes", "host_memory", "prefault_kv_cache"})
#: Questions whose answers are what each layer keeps, by its index.
_SHAPES: dict[str, type[Any]] = {"layers": LayerShape, "recurrent layers": StateShape}
_LIBRARIES = ("torch", "transformers", "safetensors", "gguf", "compressed_tensors")
#: Lines of /proc/cpuinfo that name the processor, on x86-64 and on ARM.
_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU variant", "CPU part", "CPU revision")


class VerdictFile:
    """The file of one configuration. What it holds for another state of the files is overwritten.

    Raises:
        StartupError: see `load_kernels`.
    """

    def __init__(self, config: RunnerConfig) -> None:
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in _MEMORY}
        self._model, self._has_kernels = config.model_path, config.attention != "torch"
        self._path = cache_dir() / "verdicts" / f"{_hash(repr(sorted(fields.items())))[:32]}.json"
        #: Of what is loaded from now on. What changes meanwhile belongs to no verdict.
        self._state = self._current_state()

    def read(self, verdicts: Verdicts) -> None:
        """Add what is kept for the files as they are now, if that is anything."""
        try:
            kept = json.loads(self._path.read_bytes())
            if kept["state"] != self._state:
                return
            answers = {_hashable(question): _unpacked(question, answer) for question, answer in kept["answers"]}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.info("%s is not used: %s", self._path, error)
            return
        verdicts.add(answers)
        log.info("the model passed its checks when it was last loaded; they are not repeated (%s)", self._path)

    def write(self, verdicts: Verdicts) -> None:
        """Keep the answers of a model that has passed all checks, with its media: these may be refused for want of memory."""
        answers = [[question, _packed(question, answer)] for question, answer in verdicts if not _is_size(question)]
        if any(question == "media" and answer is not None for question, answer in answers) or self._current_state() != self._state:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                try:
                    json.dump({"state": self._state, "answers": answers}, file)
                    file.close()
                    os.replace(file.name, self._path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except (OSError, ValueError, TypeError) as error:
            log.info("the next start makes the same checks: cannot write %s: %s", self._path, error)

    def _current_state(self) -> str:
        """Changes with everything outside of the configuration that a check depends on."""
        kernels = load_kernels() if self._has_kernels else None
        code = [Path(module.__file__ or "").parent for module in (triptych_engine, triptych_common)]
        parts = [
            *(stamp for folder in (self._model, *code) for stamp in _stamps(folder)),
            *(["no kernels"] if kernels is None else _stamps(kernels.path)),
            *(stamp for name in _LIBRARIES for stamp in _library(name)),
            platform.python_version(),
            *_processor(),
            *sorted(cpu_features()),
            *isas_of_this_cpu(),
        ]
        return _hash("\n".join(parts))


def _stamps(path: Path) -> Iterator[str]:
    """Name, size and times of a file, or of all files in a directory. A link's are those of the file behind it."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if "__pycache__" in file.parts or not file.is_file():
            continue
        with contextlib.suppress(OSError):  # it has gone meanwhile
            status = file.stat()
            yield f"{file} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _library(name: str) -> Iterator[str]:
    """Its version and when it was installed: versions of a repository may have the same number."""
    try:
        yield f"{name} {importlib.metadata.version(name)}"
        spec = importlib.util.find_spec(name)
    except (importlib.metadata.PackageNotFoundError, ImportError):
        return
    if spec is not None and spec.origin:
        yield from _stamps(Path(spec.origin))


def _processor() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return [platform.machine(), *(line for line in lines if line.partition(":")[0].strip() in _PROCESSOR)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _is_size(question: Any) -> bool:
    return isinstance(question, tuple) and question[0] == "cache"


def _hashable(question: Any) -> Any:
    return tuple(question) if isinstance(question, list) else question


def _packed(question: Any, answer: Any) -> Any:
    if question in _SHAPES:
        return [[index, *dataclasses.astuple(shape)] for index, shape in answer.items()]
    return answer


def _unpacked(question: Any, answer: Any) -> Any:
    if isinstance(question, str) and question in _SHAPES:
        return {index: _SHAPES[question](*shape) for index, *shape in answer}
    return answer
