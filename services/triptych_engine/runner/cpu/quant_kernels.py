"""Calls of the CPU kernels for quantised weights (csrc/linear/linear_quant.cpp)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from triptych_engine.runner.cpu.huge_pages import HugePages
from triptych_engine.runner.quantization.formats import FORMATS, QuantFormat, QuantizedRows

_PANEL_FIELDS = 3  # 64-bit words of QuantPanel


@dataclass(frozen=True)
class PackedQuant:
    """A packed weight. Parts of it may have different formats."""

    #: [panels, 3] int64, the mirror of QuantPanel in csrc/linear/quant_layout.h. It holds addresses in `memory`.
    table: torch.Tensor
    memory: tuple[torch.Tensor, ...]
    out_features: int
    in_features: int

    @classmethod
    def empty(cls, out_features: int, in_features: int) -> PackedQuant:
        """A weight that is not packed yet."""
        return cls(torch.empty(0, _PANEL_FIELDS, dtype=torch.int64), (), out_features, in_features)

    @property
    def num_float_panels(self) -> int:
        """How many panels hold floats."""
        return sum(FORMATS[index].is_float for index in (self.table[:, 1] & 0xFFFFFFFF).tolist())

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and their scales."""
        return sum(part.nbytes for part in self.memory)

    @classmethod
    def join(cls, parts: Sequence[PackedQuant]) -> PackedQuant:
        """The weights as one, whose outputs are the parts' outputs concatenated. No weight is copied."""
        if len(parts) == 1:
            return parts[0]
        tables, first = [], 0
        for part in parts:
            table = part.table.clone()
            table[:, 2] += first
            tables.append(table)
            first += part.out_features
        memory = tuple(memory for part in parts for memory in part.memory)
        return cls(torch.cat(tables), memory, first, parts[0].in_features)


class QuantKernels:
    """The kernels of a loaded library. Thread-safe.

    Args:
        workspace: address of scratch memory for a number of rows of a number of 32-bit words.
        fast: multiply many rows in the fastest way, with bfloat16 tiles or in float32.
    """

    def __init__(self, library: ctypes.CDLL, workspace: Callable[[int, int], int], *, fast: bool = False) -> None:
        #: Of decoder layers with these products.
        self.weight_format = "quant_fast" if fast else "quant"
        self._workspace = workspace
        self._pages = HugePages()
        self.panel: int = library.triptych_quant_panel()
        pointer, count, index = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        library.triptych_quant_panel_words.argtypes, library.triptych_quant_panel_words.restype = [index, count], count
        library.triptych_quant_row_words.argtypes, library.triptych_quant_row_words.restype = [count], count
        self._panel_words: Callable[[int, int], int] = library.triptych_quant_panel_words
        self._row_words: Callable[[int], int] = functools.cache(library.triptych_quant_row_words)
        self._pack, self._unpack = library.triptych_quant_pack, library.triptych_quant_unpack
        self._pack.argtypes = [index, *[pointer] * 6, count, count]
        self._unpack.argtypes = [pointer, pointer, count, count, pointer]
        self._linear = library.triptych_linear_quant_fast if fast else library.triptych_linear_quant
        self._linear_exact = library.triptych_linear_quant_exact
        self._linear.argtypes = [pointer, count, pointer, count, *[pointer] * 3, *[count] * 3]
        self._linear_exact.argtypes = [pointer, count, pointer, count, *[pointer] * 2, *[count] * 3]

    def pack(self, form: QuantFormat, out_features: int, in_features: int, rows: Iterable[QuantizedRows]) -> PackedQuant:
        """Pack a weight.

        Args:
            rows: its rows in order, in portions that are multiples of `panel` rows, except for the last one.
        """
        num_panels, words = -(-out_features // self.panel), self._panel_words(form.index, in_features)
        memory = self._pages.empty(num_panels, words, dtype=torch.int32)
        done = 0
        for portion in rows:
            size = portion.values.shape[0]
            optional = (portion.minimums, portion.part_scales, portion.part_minimums)
            tensors = [None if tensor is None else tensor.contiguous() for tensor in (portion.values, portion.scales, *optional)]
            addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
            self._pack(form.index, *addresses, memory[done // self.panel].data_ptr(), size, in_features)
            done += size
        if done != out_features:
            raise ValueError(f"{done} rows of {out_features} were given")
        table = torch.empty(num_panels, _PANEL_FIELDS, dtype=torch.int64)
        first = torch.arange(num_panels) * self.panel
        table[:, 0] = memory.data_ptr() + torch.arange(num_panels) * words * 4
        table[:, 1] = form.index | (out_features - first).clamp(max=self.panel) << 32
        table[:, 2] = first
        return PackedQuant(table, (memory,), out_features, in_features)

    def pad_bias(self, biases: Sequence[torch.Tensor]) -> torch.Tensor:
        """The biases of a joined weight's parts, each padded to whole panels: [panels * panel] float32."""
        return torch.cat([torch.nn.functional.pad(bias.float(), (0, -len(bias) % self.panel)) for bias in biases])

    def unpack(self, packed: PackedQuant, outputs: torch.Tensor) -> torch.Tensor:
        """The weights of some outputs, [n, in] float32. outputs: [n] int64; only the last panel may be padded."""
        outputs = outputs.contiguous()
        out = torch.empty(len(outputs), packed.in_features)
        self._unpack(packed.table.data_ptr(), outputs.data_ptr(), len(outputs), packed.in_features, out.data_ptr())
        return out

    def linear(self, x: torch.Tensor, packed: PackedQuant, bias: torch.Tensor | None) -> torch.Tensor:
        """x weight^T + bias.

        x is quantised to 8 bits, for each row and group of 32; with floats of 8 bits it is not rounded. A row's result does not
        depend on the other rows. A row with a value that is not finite gives NaN; with floats what float32 gives.

        With `fast`, many rows are rounded to bfloat16, as are the weights, or nothing is rounded: a row's result depends on how
        many rows there are, and a row with a value that is not finite gives nothing finite.

        Args:
            x: [rows, in] fp32 with dense rows.
            bias: as of `pad_bias`.

        Returns:
            [rows, out] fp32.
        """
        out = torch.empty(x.shape[0], packed.out_features)
        self._linear(
            x.data_ptr(), x.stride(0), packed.table.data_ptr(), len(packed.table), None if bias is None else bias.data_ptr(),
            out.data_ptr(), self._workspace(x.shape[0], self._row_words(x.shape[1])), *out.shape, x.shape[1],
        )  # fmt: skip
        return out

    def linear_exact(self, x: torch.Tensor, packed: PackedQuant, bias: torch.Tensor | None) -> torch.Tensor:
        """Like `linear`, in float32: x is not quantised."""
        out = torch.empty(x.shape[0], packed.out_features)
        self._linear_exact(
            x.data_ptr(), x.stride(0), packed.table.data_ptr(), len(packed.table), None if bias is None else bias.data_ptr(),
            out.data_ptr(), *out.shape, x.shape[1],
        )  # fmt: skip
        return out
