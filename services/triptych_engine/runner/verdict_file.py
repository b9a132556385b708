"""Keeps verdicts on disk, so that an engine starts without the checks that passed when it last started with the same model.

The checks compute the same on the same files, code, libraries, settings and processor. If any of these has changed, all are made
again. Sizes and times of files stand for their contents, as in `make`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triptych_common
from triptych_common.host.cache import cache_dir
from triptych_common.host.cpu import cpu_features, isas_of_this_cpu

import triptych_engine
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Of RunnerConfig: how much memory there is decides about the number of blocks, which is found out anew, and about nothing else.
_MEMORY = frozenset({"kv_cache_bytes", "memory_limit", "memory_utilization", "reserved_bytes", "host_memory", "prefault_kv_cache"})
_LIBRARIES = ("torch", "transformers", "safetensors", "gguf", "compressed-tensors")


class VerdictFile:
    """The file of one configuration. There is one for each; what it holds for another state of the files is overwritten."""

    def __init__(self, config: RunnerConfig) -> None:
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in _MEMORY}
        self._settings = repr(sorted(fields.items()))
        self._model = config.model_path
        self._device = str(config.device) if config.device.type == "cpu" else torch.cuda.get_device_name(config.device)
        self._path = cache_dir() / "verdicts" / f"{_hash(self._settings)[:32]}.json"

    def read(self, verdicts: Verdicts) -> None:
        """Add what is kept for the files as they are now, if that is anything."""
        try:
            kept = json.loads(self._path.read_bytes())
            if kept["state"] != self._state():
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
        """Keep the answers of a model that has passed all checks. What a check has refused it may have refused for want of memory,
        so that is asked again; if it is media, all is."""
        answers = [[question, _packed(question, answer)] for question, answer in verdicts if not _is_asked_again(question, answer)]
        if any(question == "media" and answer is not None for question, answer in answers):
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                try:
                    json.dump({"state": self._state(), "answers": answers}, file)
                    file.close()
                    os.replace(file.name, self._path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            log.info("the next start makes the same checks: cannot write %s: %s", self._path, error.strerror)

    def _state(self) -> str:
        """Changes with everything outside of the configuration that a check depends on."""
        code = [Path(module.__file__ or "").parent for module in (triptych_engine, triptych_common)]
        parts = [
            *(stamp for folder in (self._model, *code) for stamp in _stamps(folder)),
            *(f"{name} {_version(name)}" for name in _LIBRARIES),
            platform.python_version(),
            platform.machine(),
            *sorted(cpu_features()),
            *isas_of_this_cpu(),
            self._device,
        ]
        return _hash("\n".join(parts))


def _stamps(path: Path) -> Iterator[str]:
    """Name, size and time of change of a file, or of all files in a directory. A link's are those of the file behind it."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            status = file.stat()
            yield f"{file} {status.st_size} {status.st_mtime_ns}"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _hashable(question: Any) -> Any:
    return tuple(question) if isinstance(question, list) else question


def _is_asked_again(question: Any, answer: Any) -> bool:
    is_no_decoder = answer is None and str(question).endswith("decoder")
    return question == "num_blocks" or answer is False or is_no_decoder


def _packed(question: Any, answer: Any) -> Any:
    if question == "layers":
        return [[index, *dataclasses.astuple(shape)] for index, shape in answer.items()]
    return answer


def _unpacked(question: Any, answer: Any) -> Any:
    if question == "layers":
        return {index: LayerShape(*shape) for index, *shape in answer}
    return answer
