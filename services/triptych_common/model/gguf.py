"""The header of a GGUF file: its metadata and where its tensors are. Needs no torch.

The package `gguf` reads headers, too, but without looking at the size of the file, and it takes seconds for a large vocabulary.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.errors import StartupError

#: Architectures in GGUF that are served -> the model types of their configurations. Each has a test against transformers.
ARCHITECTURES = {"llama": ("llama", "mistral"), "qwen2": ("qwen2",), "qwen3": ("qwen3",), "qwen3moe": ("qwen3_moe",)}
#: Type of a tensor by its number -> name, weights of a block, bytes of a block.
TENSOR_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
#: Type of a metadata value by its number -> struct's letter; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is in the file."""

    name: str
    #: Name of its type.
    type: str
    #: As in torch: the last dimension is contiguous.
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors."""

    #: Numbers, strings and short arrays; arrays of more than `max_array` elements are left out.
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    #: Size of metadata and tensor descriptions.
    num_bytes: int = field(default=0)

    @property
    def architecture(self) -> str:
        """As llama.cpp names it, e.g. `llama`."""
        return str(self.metadata.get("general.architecture", ""))


def read_gguf_header(file: Path, max_array: int = 64) -> GgufHeader:
    """Read a file's header, and check that all its tensors are in the file.

    Raises:
        StartupError: the file cannot be read, is no GGUF file, or is cut or damaged. The message names the file.
    """
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            if size < 24 or stream.read(4) != b"GGUF":
                raise ValueError("it does not begin like a GGUF file")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Parser(content, size, max_array).header()
    except OSError as error:
        raise StartupError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        what = str(error) if type(error) is ValueError else "it ends within its header, or its header is not valid"
        raise StartupError(f"{file} is damaged: {what}; fetch the model again") from error


class _Parser:
    def __init__(self, content: mmap.mmap, size: int, max_array: int) -> None:
        self._content, self._size, self._max_array = content, size, max_array
        self._at = 4

    def header(self) -> GgufHeader:
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version of GGUF is {version}; {' and '.join(map(str, _VERSIONS))} are known")
        num_tensors, num_values = self._scalar("Q"), self._scalar("Q")
        if max(num_tensors, num_values) > self._size // 8:
            raise ValueError("its header names more tensors or values than it can hold")
        metadata = {}
        for _ in range(num_values):
            key, value = self._string(), self._value(self._scalar("I"))
            if value is not None:
                metadata[key] = value
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its alignment is {alignment!r}")
        end = self._at
        start = -(-end // alignment) * alignment
        tensors = {one.name: self._placed(one, start) for one in described}
        if len(tensors) != num_tensors:
            raise ValueError("two of its tensors have the same name")
        return GgufHeader(metadata, tensors, end)

    def _scalar(self, letter: str) -> Any:
        (value,) = struct.unpack_from(f"<{letter}", self._content, self._at)
        self._at += struct.calcsize(letter)
        return value

    def _skip(self, num_bytes: int) -> None:
        if num_bytes > self._size - self._at:
            raise ValueError("it ends within its header")
        self._at += num_bytes

    def _string(self) -> str:
        length, begin = self._scalar("Q"), self._at
        self._skip(length)
        return self._content[begin : self._at].decode()

    def _value(self, kind: int) -> Any:
        """None for a long array."""
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise ValueError(f"its header has a value of the unknown type {kind}")
            return self._scalar(_SCALARS[kind])
        item, count = self._scalar("I"), self._scalar("Q")
        if item == _ARRAY:
            raise ValueError("its header has an array of arrays")
        if count <= self._max_array:
            return [self._value(item) for _ in range(count)]
        if item in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[item]))
        elif item == _STRING:
            for _ in range(count):
                self._skip(self._scalar("Q"))
        else:
            raise ValueError(f"its header has an array of the unknown type {item}")
        return None

    def _tensor(self) -> GgufTensor:
        """The offset counts from the first tensor."""
        name, num_dims = self._string(), self._scalar("I")
        if num_dims > 4:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        shape = tuple(reversed([self._scalar("Q") for _ in range(num_dims)]))
        number, offset = self._scalar("I"), self._scalar("Q")
        if number not in TENSOR_TYPES:
            raise ValueError(f"tensor {name} has the unknown type {number}")
        kind, block, block_bytes = TENSOR_TYPES[number]
        if shape and shape[-1] % block:
            raise ValueError(f"the rows of tensor {name} have {shape[-1]} weights, which is no multiple of {block} ({kind})")
        return GgufTensor(name, kind, shape, offset, math.prod(shape) // block * block_bytes)

    def _placed(self, tensor: GgufTensor, start: int) -> GgufTensor:
        if start + tensor.offset + tensor.num_bytes > self._size:
            raise ValueError(f"it has {self._size:,} bytes and ends before the end of tensor {tensor.name}")
        return GgufTensor(tensor.name, tensor.type, tensor.shape, start + tensor.offset, tensor.num_bytes)
