"""The element type of a checkpoint, by what its weights are. Needs no torch."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from pathlib import Path
from typing import Any

#: As safetensors names them -> as torch does. Types that hold quantised numbers say nothing of what a model computes in.
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}
_DTYPES = frozenset(_FLOATS.values())
#: Of a safetensors file's header; the format allows no more.
_MAX_HEADER_BYTES = 100_000_000


def checkpoint_dtype(path: Path) -> str:
    """`bfloat16`, `float16` or `float32`: what most of the parameters in a directory's safetensors files are.

    Configurations are not to be trusted: of one with parts, the whole and each part may name another type, and the weights may have
    none of them. They are asked where there are no such files, or as many parameters of two types: the whole first, then what is
    inside of it. float32 when nothing says.
    """
    counts: Counter[str] = Counter()
    for file in _weight_files(path):
        counts += _num_parameters(file)
    most = [name for name, count in counts.items() if count == max(counts.values())]
    if len(most) == 1:
        return most[0]
    config = _read_json(path / "config.json")
    return _declared(config) or "float32"


def _weight_files(path: Path) -> list[Path]:
    """Those that transformers loads: beside them may lie other copies of the weights, or adapters."""
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    index = _read_json(path / "model.safetensors.index.json")
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(parts, dict):
        return [path / name for name in sorted({name for name in parts.values() if isinstance(name, str)})]
    return sorted(path.glob("*.safetensors"))


def _num_parameters(file: Path) -> Counter[str]:
    """Type -> parameters, by the file's header; nothing of a file that is no safetensors file: loading it says what is wrong."""
    counts: Counter[str] = Counter()
    try:
        with file.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(size)) if size <= _MAX_HEADER_BYTES else {}
        for tensor in header.values():
            if tensor.get("dtype") in _FLOATS:
                counts[_FLOATS[tensor["dtype"]]] += math.prod(tensor["shape"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError, struct.error):
        return Counter()
    return counts


def _read_json(file: Path) -> Any:
    """None where there is no such file, or something else in it."""
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
