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
    none of them. They are asked where there are no such files: the whole first, then what is inside of it. float32 when nothing
    says.
    """
    counts: Counter[str] = Counter()
    for file in sorted(path.glob("*.safetensors")):
        for tensor in _header(file).values():
            if isinstance(tensor, dict) and tensor.get("dtype") in _FLOATS:
                counts[_FLOATS[tensor["dtype"]]] += math.prod(tensor.get("shape", ()))
    if counts:
        return counts.most_common(1)[0][0]
    config = path / "config.json"
    return _declared(json.loads(config.read_text())) or "float32" if config.is_file() else "float32"


def _header(file: Path) -> dict[str, Any]:
    """Tensor name -> what the file says of it; nothing of a file that is no safetensors file: loading it says what is wrong."""
    with file.open("rb") as stream:
        start = stream.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < size <= _MAX_HEADER_BYTES:
            return {}
        try:
            header = json.loads(stream.read(size))
        except ValueError:
            return {}
    return header if isinstance(header, dict) else {}


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
