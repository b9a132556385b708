"""The recurrences of hybrid models on CPUs, through the kernels in csrc/recurrent.cpp."""

from __future__ import annotations

import ctypes

import torch

from triptych_engine.runner.recurrent.ops import Recurrence, TorchRecurrentOps
from triptych_engine.runner.recurrent.step import RecurrentStep

_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_SEGMENTS = ("first_segment", "first_token", "slots", "is_fresh", "snapshots")


class RecurrentSegments(ctypes.Structure):
    """Mirror of RecurrentSegments in short_conv.h."""

    _fields_ = [*((name, ctypes.c_void_p) for name in _SEGMENTS), ("num_sequences", ctypes.c_int64)]


class ConvArgs(ctypes.Structure):
    """Mirror of ConvArgs in short_conv.h; the fields are described there."""

    _fields_ = [
        ("segments", RecurrentSegments),
        *((name, ctypes.c_void_p) for name in ("x", "weight", "bias", "state", "out")),
        *((name, ctypes.c_int64) for name in ("x_stride", "channels")),
        *((name, ctypes.c_int32) for name in ("width", "silu", "is_gated")),
    ]


class RecurArgs(ctypes.Structure):
    """Mirror of RecurArgs in recurrence.h; the fields are described there."""

    _fields_ = [
        ("segments", RecurrentSegments),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "decay", "beta", "skip", "state", "out")),
        *((f"{name}_stride", ctypes.c_int64) for name in ("query", "key", "value")),
        *((name, ctypes.c_int32) for name in ("num_key_heads", "num_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("has_delta_rule", "normalizes", "decays_rows")),
        ("scale", ctypes.c_float),
    ]


class CpuRecurrentOps:
    """Implements `RecurrentOps`. Shapes and dtypes that the kernels do not take are computed by torch."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._torch = library, TorchRecurrentOps()
        self._conv = {dtype: getattr(library, f"triptych_conv_{name}") for dtype, name in _TYPES.items()}
        self._recur = {dtype: getattr(library, f"triptych_recur_{name}") for dtype, name in _TYPES.items()}
        self._gated_rms_norm = {dtype: getattr(library, f"triptych_gated_rms_norm_{name}") for dtype, name in _TYPES.items()}
        for function in self._gated_rms_norm.values():
            function.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, ctypes.c_float, ctypes.c_int]
        self._weights: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}  # data pointer -> see `_prepared`
        for name, struct in (("conv", ConvArgs), ("recur", RecurArgs)):
            size = getattr(library, f"triptych_{name}_args_size")
            size.restype = ctypes.c_int64
            if size() != ctypes.sizeof(struct):
                raise AssertionError(f"{struct.__name__} does not mirror that of csrc/")

    def gated_rms_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, gates_first: bool
    ) -> torch.Tensor:
        """x / rms(x) * weight * silu(gate) over the last dimension, or the norm of x * silu(gate); x and gate of the same dtype,
        fp32 or bf16, weight fp32."""
        x, gate = x.contiguous(), gate.contiguous()
        out = torch.empty_like(x)
        size = weight.shape[0]
        self._gated_rms_norm[x.dtype](
            x.data_ptr(), gate.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps, gates_first
        )
        return out

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        silu: bool = False,
        is_gated: bool = False,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        channels, width = weight.shape[0], weight.shape[1] - 1
        if x.dtype not in _TYPES or x.stride(-1) != 1 or not self._library.triptych_conv_takes(channels, width):
            return self._torch.conv(x, weight, bias, silu=silu, is_gated=is_gated, state=state, step=step)
        weight, bias = self._prepared(weight, bias)
        out = torch.empty(len(x), channels, dtype=x.dtype)
        args = ConvArgs(
            segments=segments_of(step),
            x=x.data_ptr(),
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            state=state.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            channels=channels,
            width=width,
            silu=silu,
            is_gated=is_gated,
        )
        self._conv[x.dtype](ctypes.byref(args))
        return out

    def _prepared(self, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The weight as [width + 1, channels] and the bias, in float32. They never change after the load."""
        found = self._weights.get(weight.data_ptr())
        if found is None or found[0].shape != weight.shape:
            prepared = weight.float().T.contiguous(), None if bias is None else bias.float().contiguous()
            found = self._weights[weight.data_ptr()] = (weight, *prepared)  # the weight is held, so that its address stays its own
        return found[1:]

    def recur(self, inputs: Recurrence, state: torch.Tensor, step: RecurrentStep) -> torch.Tensor:
        parts = inputs.query, inputs.key, inputs.value
        num_heads, key_dim, value_dim = state.shape[1:]
        is_known = {part.dtype for part in parts} in ({torch.float32}, {torch.bfloat16}) and all(map(_is_dense, parts))
        if not is_known or not self._library.triptych_recur_takes(key_dim, value_dim):
            return self._torch.recur(inputs, state, step)
        decay, beta = inputs.decay.contiguous(), inputs.beta.contiguous()
        out = torch.empty(inputs.value.shape, dtype=inputs.value.dtype)
        args = RecurArgs(
            segments=segments_of(step),
            query=inputs.query.data_ptr(),
            key=inputs.key.data_ptr(),
            value=inputs.value.data_ptr(),
            decay=decay.data_ptr(),
            beta=beta.data_ptr(),
            skip=None if inputs.skip is None else inputs.skip.data_ptr(),
            state=state.data_ptr(),
            out=out.data_ptr(),
            query_stride=inputs.query.stride(0),
            key_stride=inputs.key.stride(0),
            value_stride=inputs.value.stride(0),
            num_key_heads=inputs.key.shape[1],
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            has_delta_rule=inputs.has_delta_rule,
            normalizes=inputs.normalizes,
            decays_rows=inputs.decay.dim() == 3,
            scale=inputs.scale,
        )
        self._recur[inputs.value.dtype](ctypes.byref(args))
        return out


def _is_dense(part: torch.Tensor) -> bool:
    """Whether the numbers of each token are contiguous."""
    return part.stride(2) == 1 and part.stride(1) == part.shape[2]


def segments_of(step: RecurrentStep) -> RecurrentSegments:
    """What kernels are told of a step, which must be kept alive."""
    arrays = {name: getattr(step, name).ctypes.data for name in _SEGMENTS}
    return RecurrentSegments(**arrays, num_sequences=step.num_sequences)
