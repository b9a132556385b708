"""Weights of 4 and 8 bits as GPTQ, AWQ and compressed-tensors store them in safetensors.

Eight values of four bits share a word of 32 bits, the first in its lowest bits. A weight is (value - zero point) * scale, with a
scale and a zero point for each output and group of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triptych.errors import StartupError, UnsupportedModelError

from triptych_engine.runner.quantization.formats import GROUP, Q4_ZERO, Q4_ZERO_32, Q8, QuantFormat, QuantizedRows
from triptych_engine.runner.quantization.tensor import QuantizedTensor

#: AWQ's order of the eight columns that share a word.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
#: Largest relative change of a scale that is stored in bfloat16 or float32, as fp16: half a unit in the last place of it.
_HALF_TOLERANCE = 2**-11


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in memory, before its rows are packed for a device."""

    #: [out, in] uint8, from 0 to 15 or 255.
    values: torch.Tensor
    #: [out, groups] float.
    scales: torch.Tensor
    #: [out, groups] uint8.
    zeros: torch.Tensor
    bits: int
    group_size: int

    def tensor(self, name: str) -> QuantizedTensor:
        """The weight in one of the formats.

        Raises:
            UnsupportedModelError: there is none for it. The message has the name.
            StartupError: its parts do not fit together.
        """
        form, repeats = self._format(name)
        self._check(name)
        scales = self.scales.half()
        lost = (scales.float() - self.scales.float()).abs() > _HALF_TOLERANCE * self.scales.float().abs()
        if lost.any():
            raise UnsupportedModelError(f"a scale of {name} is {self.scales[lost][0].item():.3g}, which fp16 does not hold")
        count = -(-self.values.shape[1] // form.block)
        scales, zeros = (part.repeat_interleave(repeats, 1)[:, :count] for part in (scales, self.zeros))

        def read(begin: int, end: int) -> QuantizedRows:
            minimums = zeros[begin:end] if form.minimum == "zero" else None
            return QuantizedRows(form, self.values[begin:end], scales[begin:end], minimums)

        out_features, in_features = self.values.shape
        return QuantizedTensor(form, out_features, in_features, read)

    def _check(self, name: str) -> None:
        rows, columns = self.values.shape
        expected = (rows, -(-columns // self.group_size))
        for what, part in (("scales", self.scales), ("zero points", self.zeros)):
            if tuple(part.shape) != expected:
                raise StartupError(
                    f"{name} has {list(part.shape)} {what} for {[rows, columns]} weights in groups of {self.group_size}; "
                    f"{list(expected)} are needed"
                )
        if self.bits < 8 and (self.values >> self.bits).any():
            raise StartupError(f"{name} has values of more than {self.bits} bits")

    def _format(self, name: str) -> tuple[QuantFormat, int]:
        """The format, and the number of its blocks in a group."""
        if self.group_size % GROUP:
            raise UnsupportedModelError(f"{name} has groups of {self.group_size} weights; multiples of {GROUP} are supported")
        if self.bits == 8:
            if not self.zeros.eq(128).all():
                raise UnsupportedModelError(f"{name} has 8 bits and zero points; weights of 8 bits must be symmetric")
            return Q8, self.group_size // GROUP
        form = Q4_ZERO if self.group_size % Q4_ZERO.block == 0 else Q4_ZERO_32
        return form, self.group_size // form.block


#: Reads a tensor of a layer by the last part of its name; None if there is none.
Read = Callable[[str], torch.Tensor | None]


def unpack_words(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, words] int32 -> [rows, words * 32 / bits] uint8, the lowest bits first."""
    raw = packed.contiguous().view(torch.uint8)
    return raw if bits == 8 else torch.stack([raw & 0xF, raw >> 4], -1).flatten(1)


def read_gptq(read: Read, config: Mapping[str, Any], name: str) -> PackedWeight | None:
    """qweight [in / 8, out], qzeros [groups, out / 8], scales [groups, out]; words hold inputs, and outputs in qzeros."""
    packed = read("qweight")
    if packed is None:
        return None
    bits, scales, zeros, order = config["bits"], read("scales"), read("qzeros"), read("g_idx")
    if scales is None or zeros is None:
        raise UnsupportedModelError(f"{name} has a qweight without scales and qzeros")
    values = unpack_words(packed.t(), bits)
    size = _group_size(config, values.shape[1])
    if order is not None and not torch.equal(order.long(), torch.arange(values.shape[1]) // size):
        raise UnsupportedModelError(f"{name} orders its inputs by activation (desc_act), which is not supported")
    added = 0 if config.get("checkpoint_format") == "gptq_v2" else 1  # the first version stores zero points less one
    zero = unpack_words(zeros, bits) + added & (1 << bits) - 1
    return PackedWeight(values, scales.t().contiguous(), zero.t().contiguous(), bits, size)


def read_awq(read: Read, config: Mapping[str, Any], name: str) -> PackedWeight | None:
    """qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]; words hold outputs, in an order of their own."""
    packed = read("qweight")
    if packed is None:
        return None
    scales, zeros = read("scales"), read("qzeros")
    if scales is None or zeros is None:
        raise UnsupportedModelError(f"{name} has a qweight without scales and qzeros")

    def outputs(words: torch.Tensor) -> torch.Tensor:
        return unpack_words(words, 4).unflatten(1, (-1, 8))[..., list(_AWQ_ORDER)].flatten(1).t().contiguous()

    values = outputs(packed)
    size = _group_size(config, values.shape[1])
    return PackedWeight(values, scales.t().contiguous(), outputs(zeros), 4, size)


def read_compressed(read: Read, config: Mapping[str, Any], name: str) -> PackedWeight | None:
    """weight_packed [out, in / 8] or weight [out, in] int8, weight_scale [out, groups], weight_zero_point [out / 8, groups].

    config: the `weights` of the layer's group.
    """
    packed, plain, scales = read("weight_packed"), read("weight"), read("weight_scale")
    if packed is None and (plain is None or plain.dtype != torch.int8):
        return None
    if scales is None:
        raise UnsupportedModelError(f"{name} is quantised and has no weight_scale")
    bits = config["num_bits"]
    if packed is not None:
        shape = read("weight_shape")
        values = unpack_words(packed, bits)
        values = values if shape is None else values[:, : int(shape[1])]
    elif plain is not None:
        values = _unsigned(plain, bits)
    out_features, in_features = values.shape
    scales = scales.reshape(1, 1).expand(out_features, 1) if scales.numel() == 1 else scales.reshape(scales.shape[0], -1)
    size = _group_size(config, in_features)
    order = read("weight_g_idx")
    if order is not None and not torch.equal(order.long(), torch.arange(in_features) // size):
        raise UnsupportedModelError(f"{name} orders its inputs by activation (actorder), which is not supported")
    given = read("weight_zero_point")
    if given is None:
        zeros = torch.full(scales.shape, 1 << bits - 1, dtype=torch.uint8)
    elif given.dtype == torch.int32:
        zeros = unpack_words(given.t(), bits).t()[:out_features]
    else:
        zeros = _unsigned(given.reshape(given.shape[0], -1), bits)
    return PackedWeight(values.contiguous(), scales, zeros.contiguous(), bits, size)


def _unsigned(signed: torch.Tensor, bits: int) -> torch.Tensor:
    return (signed.short() + (1 << bits - 1)).to(torch.uint8)


def _group_size(config: Mapping[str, Any], in_features: int) -> int:
    """With a scale per output, a multiple of 32: the last group of a row need not be whole."""
    size = config.get("group_size") or -1
    return int(size) if size > 0 else -(-in_features // GROUP) * GROUP
