"""The weight files of a checkpoint: which they are, whether they are whole, and what identifies them. Needs no torch.

Only headers and samples are read. From a local disk that takes milliseconds, whatever the size of the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

from triptych.errors import StartupError

from triptych_common.model.gguf import read_gguf_header

#: Largest header of a safetensors file; the format allows no more.
_MAX_HEADER_BYTES = 100_000_000
#: Type of a tensor in safetensors -> bits of an element.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64,
}  # fmt: skip
#: Number and size of the samples of all files together: 16 MiB at most.
_NUM_SAMPLES, _SAMPLE_BYTES = 4096, 4096

Header = dict[str, dict[str, Any]]


def gguf_file(path: Path) -> Path | None:
    """The GGUF file of a model directory; None if it has other weights, or no GGUF file.

    Raises:
        StartupError: there are several.
    """
    files = sorted(path.glob("*.gguf"))
    if not files or weight_files(path) or any(path.glob("*.bin")):
        return None
    if len(files) > 1:
        raise StartupError(f"{path} has {len(files)} GGUF files, e.g. {files[0].name}; a model directory has one, in one part")
    return files[0]


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that transformers loads. The directory may also hold other copies of the weights, or adapters."""
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    index = _read_index(path / "model.safetensors.index.json")
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(parts, dict):
        return [path / name for name in sorted({name for name in parts.values() if isinstance(name, str)})]
    return sorted(path.glob("*.safetensors"))


def check_weight_files(path: Path) -> None:
    """Check that the weights of a model directory are there and whole, except for the values of the weights themselves.

    Raises:
        StartupError: a file is missing, empty, cut, or has a damaged header. The message names the file.
    """
    index = path / "model.safetensors.index.json"
    if not (path / "model.safetensors").is_file() and index.is_file() and not isinstance(_read_index(index), dict):
        raise StartupError(f"{index} is damaged: it is no JSON object; fetch the model again")
    if (gguf := gguf_file(path)) is not None:
        read_gguf_header(gguf)
        return
    files = weight_files(path)
    if not files and not [*path.glob("*.bin")]:
        raise StartupError(f"{path} has no weights; models are read from *.safetensors files, or from one *.gguf file")
    for file in files:
        if not file.is_file():
            raise StartupError(f"{file} is missing, though {index.name} names it; fetch the model again")
        read_header(file)


def read_header(file: Path) -> Header:
    """Name of each tensor -> its `dtype`, `shape` and `data_offsets`, from the header of a safetensors file.

    Raises:
        StartupError: the file cannot be read, or its header and its size do not fit together.
    """
    try:
        return _checked_header(file)
    except OSError as error:
        raise StartupError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StartupError(f"{file} is damaged: {_reason(error)}; fetch the model again") from error


def weights_fingerprint(path: Path) -> str:
    """What identifies the weights of a model directory: sha256, hex. Empty if it has none, or if one of its files is missing.

    Two revisions of a model usually have the same configuration and the same shapes, so that nothing but the weights tells them
    apart. Reading 100 GB would take minutes. So the digest covers the name and the size of each file, its header (names, types and
    shapes of all tensors), and up to 4096 samples of 4 KiB: the beginning, middle and end of every tensor, or of as many evenly
    chosen ones as that allows. Training, merging an adapter and quantising change almost every value of the tensors that they
    touch. An edit of a few rows can fall between the samples; then the fingerprint stays the same.

    It does not depend on where the files come from: a directory and the hub's cache with the same files have the same fingerprint.

    Raises:
        StartupError: see `read_header` and `read_gguf_header`.
    """
    if (gguf := gguf_file(path)) is not None:
        return gguf_fingerprint(gguf)
    files = weight_files(path)
    if not files or not all(file.is_file() for file in files):
        return ""
    digest = hashlib.sha256()
    tensors: list[tuple[Path, int, int]] = []
    for file in files:
        header, size = read_header(file), file.stat().st_size
        start = size - max((entry["data_offsets"][1] for entry in header.values()), default=0)
        digest.update(f"{file.name}:{size}:{json.dumps(header, sort_keys=True)}".encode())
        tensors += [
            (file, start + entry["data_offsets"][0], start + entry["data_offsets"][1]) for _, entry in sorted(header.items())
        ]
    _add_samples(digest, tensors)
    return digest.hexdigest()


def gguf_fingerprint(file: Path) -> str:
    """What identifies a GGUF file, in the same way. Its name does not matter. Raises StartupError if it is damaged."""
    header, size = read_gguf_header(file), file.stat().st_size
    digest = hashlib.sha256(f"{size}:".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(header.num_bytes))
    _add_samples(digest, [(file, one.offset, one.offset + one.num_bytes) for _, one in sorted(header.tensors.items())])
    return digest.hexdigest()


def _add_samples(digest: hashlib._Hash, tensors: list[tuple[Path, int, int]]) -> None:
    """Add samples of tensors' content. tensors: file, first byte, byte after the last."""
    every = max(1, math.ceil(3 * len(tensors) / _NUM_SAMPLES))
    for file, samples in _samples(tensors[::every]).items():
        with file.open("rb", buffering=0) as stream:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for offset, num_bytes in samples:
                digest.update(os.pread(stream.fileno(), num_bytes, offset))


def _samples(tensors: list[tuple[Path, int, int]]) -> dict[Path, list[tuple[int, int]]]:
    """File -> (offset, size) of the samples, in the order of their offsets. tensors: file, first byte, byte after the last."""
    samples: dict[Path, set[tuple[int, int]]] = {}
    for file, start, end in tensors:
        size = min(_SAMPLE_BYTES, end - start)
        samples.setdefault(file, set()).update((offset, size) for offset in (start, (start + end - size) // 2, end - size))
    return {file: sorted(found) for file, found in samples.items()}


def _checked_header(file: Path) -> Header:
    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(8)
        if len(first) < 8:
            raise ValueError(f"it has {size} bytes" if size else "it is empty")
        (length,) = struct.unpack("<Q", first)
        if length > _MAX_HEADER_BYTES:
            raise ValueError("it does not begin with the size of a header")
        if 8 + length > size:
            raise ValueError(f"it ends within its header, after {size:,} bytes")
        content = stream.read(length)
    try:
        header = json.loads(content)
    except ValueError as error:
        raise ValueError("its header is not valid JSON") from error
    header.pop("__metadata__", None)
    end = 8 + length + max((_checked_end(name, entry) for name, entry in header.items()), default=0)
    if size != end:
        raise ValueError(f"it has {size:,} bytes, and {end:,} by its header")
    return dict(header)


def _checked_end(name: str, entry: dict[str, Any]) -> int:
    """Offset of the byte after a tensor."""
    start, end = entry["data_offsets"]
    bits = _BITS.get(entry["dtype"])
    if bits is None:
        raise ValueError(f"{name} has the unknown type {str(entry['dtype'])[:20]!r}")
    if not 0 <= start <= end or (end - start) * 8 != math.prod(entry["shape"]) * bits:
        raise ValueError(f"the size of {name} does not fit its shape")
    return int(end)


def _reason(error: Exception) -> str:
    return str(error) if type(error) is ValueError else "its header does not describe tensors"


def _read_index(file: Path) -> Any:
    """None when there is no such file, or when it is not valid JSON."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
