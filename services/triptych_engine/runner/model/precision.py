"""Which element type a model is computed in."""

from __future__ import annotations

import torch
from triptych_common.errors import StartupError
from triptych_common.host import cpu


def compute_dtype(checkpoint: torch.dtype, device: torch.device) -> torch.dtype:
    """The type that serves a checkpoint best on a device: its own where the device computes in that, else float32, its superset.

    A CPU without bfloat16 instructions computes in float32 in either case: our products widen the weights (`Bf16Linear`), oneDNN's
    emulate the instructions, which took three to four times as long with 64 rows.
    """
    if device.type == "cpu" and checkpoint != torch.float32 and not (checkpoint == torch.bfloat16 and cpu_computes_bfloat16()):
        return torch.float32
    return checkpoint


def kv_cache_dtype(
    asked: torch.dtype | None, checkpoint: torch.dtype, computed: torch.dtype, *, is_own_choice: bool
) -> torch.dtype:
    """The type of keys and values in the cache.

    With many or long sequences, a step reads more of the cache than of the weights. A CPU without bfloat16 instructions computes
    such models in float32, but keeps keys and values in bfloat16: half as much to read, and room for twice the tokens.

    Args:
        asked: the type that was asked for, if one was.
        checkpoint: of the weights.
        computed: the model's.
        is_own_choice: whether nobody asked for the model's type.
    """
    if asked is not None:
        return asked
    stands_in = is_own_choice and (checkpoint, computed) == (torch.bfloat16, torch.float32)
    return checkpoint if stands_in else computed


def check_int8(device: torch.device, dtype: torch.dtype | None, has_kernels: bool) -> None:
    """Raises StartupError where nothing computes with 8-bit integers.

    Args:
        dtype: that was asked for, if one was.
        has_kernels: whether the CPU kernels are loaded.
    """
    if device.type != "cpu":
        raise StartupError(f"--quantization int8 is for CPUs; this engine runs on {device}")
    if dtype == torch.float16:
        raise StartupError("--quantization int8 goes with --dtype float32 or bfloat16, not with float16")
    if not has_kernels:
        raise StartupError("--quantization int8 needs the CPU kernels: a C++ compiler or prebuilt ones, and no --attention torch")


def cpu_computes_bfloat16() -> bool:
    """Whether this CPU multiplies matrices of bfloat16 by instructions of its own."""
    return torch.backends.mkldnn.is_available() and cpu.computes_bfloat16()
