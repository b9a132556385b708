"""The element type of a checkpoint, from its weights. Needs no torch."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from triptych.errors import StartupError

from triptych_common.model.weights import gguf_file, read_header, weight_files

#: safetensors' name -> torch's name. Types of quantized weights are left out: they do not tell the compute dtype.
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}
_DTYPES = frozenset(_FLOATS.values())


def checkpoint_dtype(path: Path) -> str:
    """`bfloat16`, `float16` or `float32`: the type of most parameters in a directory's safetensors files.

    Configurations are not reliable: the whole and each part of a nested one may name different types, and the weights may have none
    of them. They are used only when there are no such files, or when two types have equally many parameters. The whole comes first,
    then its parts. The result is float32 when no configuration names a type. For a GGUF file it is bfloat16: models are
    published in it before they are quantised, and keys and values need no more.
    """
    if gguf_file(path) is not None:
        return "bfloat16"
    counts: Counter[str] = Counter()
    for file in weight_files(path):
        counts += _num_parameters(file)
    most = [name for name, count in counts.items() if count == max(counts.values())]
    if len(most) == 1:
        return most[0]
    config = _read_json(path / "config.json")
    return _declared(config) or "float32"


def _num_parameters(file: Path) -> Counter[str]:
    """Type -> number of parameters, from the file's header; empty for an invalid file, which fails later when it is loaded."""
    counts: Counter[str] = Counter()
    try:
        header = read_header(file)
    except StartupError:
        return counts
    for tensor in header.values():
        if tensor["dtype"] in _FLOATS:
            counts[_FLOATS[tensor["dtype"]]] += math.prod(tensor["shape"])
    return counts


def _read_json(file: Path) -> Any:
    """None when there is no such file, or when it is not valid JSON."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def _declared(config: Any) -> str | None:
    """The first type that a configuration names, breadth first."""
    level = [config]
    while level:
        level = [part for part in level if isinstance(part, dict)]
        for part in level:
            for key in ("dtype", "torch_dtype"):
                name = str(part.get(key)).removeprefix("torch.")
                if name in _DTYPES:
                    return name
        level = [value for part in level for key, value in part.items() if key.endswith("config")]
    return None
