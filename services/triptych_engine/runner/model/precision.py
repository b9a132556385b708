"""Chooses the dtypes of a model's computation and of its KV cache."""

from __future__ import annotations

import torch
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.host import cpu


def compute_dtype(checkpoint: torch.dtype, device: torch.device) -> torch.dtype:
    """The best dtype for a checkpoint on a device: its own if the device computes in it, else float32, which contains its values.

    A CPU without bfloat16 instructions computes in float32 in either case. Our products widen the weights (`Bf16Linear`). oneDNN's
    products emulate the instructions, which took three to four times as long with 64 rows.
    """
    if device.type == "cpu" and checkpoint != torch.float32 and not (checkpoint == torch.bfloat16 and cpu_computes_bfloat16()):
        return torch.float32
    return checkpoint


def kv_cache_dtype(
    asked: torch.dtype | None, checkpoint: torch.dtype, computed: torch.dtype, *, is_own_choice: bool, is_quantized: bool = False
) -> torch.dtype:
    """The dtype of keys and values in the cache.

    With many or long sequences, a step reads more data from the cache than from the weights. A CPU without bfloat16 instructions
    computes bfloat16 models in float32, but stores keys and values in bfloat16: half the data to read, room for twice the tokens.

    Args:
        asked: the requested dtype; None if none was requested.
        checkpoint: dtype of the weights in the checkpoint.
        computed: dtype in which the model is computed.
        is_own_choice: whether `computed` was chosen by the engine, not requested.
        is_quantized: whether the checkpoint's weights are quantised; keys and values then need no more than bfloat16.
    """
    if asked is not None:
        return asked
    if is_quantized and is_own_choice:
        return torch.bfloat16
    stands_in = is_own_choice and (checkpoint, computed) == (torch.bfloat16, torch.float32)
    return checkpoint if stands_in else computed


def check_quantization(name: str, device: torch.device, dtype: torch.dtype | None, has_kernels: bool) -> None:
    """Raise StartupError if quantisation while loading is not supported here.

    Args:
        name: of the quantisation.
        dtype: the requested dtype; None if none was requested.
        has_kernels: whether the CPU kernels are loaded.
    """
    if device.type != "cpu":
        raise StartupError(f"--quantization {name} is for CPUs; this engine runs on {device}")
    if dtype == torch.float16:
        raise StartupError(f"--quantization {name} goes with --dtype float32 or bfloat16, not with float16")
    if not has_kernels:
        raise StartupError(
            f"--quantization {name} needs the CPU kernels: a C++ compiler or prebuilt ones, and no --attention torch"
        )


def check_quantized(name: str, device: torch.device, dtype: torch.dtype | None, *, has_kernels: bool) -> None:
    """Raise UnsupportedModelError if quantised checkpoints are not supported here.

    name: of the model; the others as of `check_quantization`.
    """
    if device.type != "cpu":
        raise UnsupportedModelError(
            f"cannot serve {name}: checkpoints that are quantised are for CPUs; this engine runs on {device}"
        )
    if dtype not in (None, torch.float32):
        what = str(dtype).removeprefix("torch.")
        raise UnsupportedModelError(
            f"cannot serve {name}: a checkpoint that is quantised is computed in float32 and 8-bit integers, not in {what}"
        )
    if not has_kernels:
        why = "checkpoints that are quantised need the CPU kernels: a C++ compiler or prebuilt ones, and no --attention torch"
        raise UnsupportedModelError(f"cannot serve {name}: {why}")


def cpu_computes_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 matrix products, and oneDNN uses them."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and cpu.computes_bfloat16()
