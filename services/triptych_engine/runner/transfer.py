"""Copies arrays between host and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

#: Alignment of tensors in a buffer, in bytes; sufficient for all dtypes.
_ALIGNMENT = 16


def use_device(device: torch.device) -> None:
    """Make a GPU the calling thread's current device. Streams, events and graphs belong to that one, not to a tensor's device."""
    if device.type == "cuda" and device.index is not None:  # without an index it already is the current device
        torch.cuda.set_device(device)


def check_device(device: torch.device) -> None:
    """Raise RuntimeError if a GPU can no longer compute. After some errors, every later CUDA call of the process fails."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class HostToDevice:
    """Copies a step's arrays to the device: all in one copy, from pinned memory, without waiting for it.

    On a CPU, the tensors share the memory of the arrays.

    Args:
        packed: pack the arrays into one copy; by default on all devices except a CPU.
    """

    def __init__(self, device: torch.device, *, packed: bool | None = None) -> None:
        self._device = device
        self._packed = device.type != "cpu" if packed is None else packed

    def __call__(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """The arrays as tensors on the device, in order. The arrays may be changed afterwards, unless the device is a CPU."""
        if not self._packed:
            return [torch.from_numpy(array) for array in arrays]
        return _views(_pack(arrays, self._device).to(self._device, non_blocking=True), arrays)


class StaticArrays:
    """Device tensors with fixed addresses, which are filled from host arrays in one copy.

    Args:
        arrays: the initial content; later arrays must have the same shapes and dtypes, but the last one may be shorter.
    """

    def __init__(self, device: torch.device, arrays: Sequence[np.ndarray]) -> None:
        self._device = device
        self._buffer = torch.empty(_ends(arrays)[-1], dtype=torch.uint8, device=device)
        self.tensors = _views(self._buffer, arrays)
        self.fill(arrays)

    def fill(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the arrays, without waiting for it. The last one may be shorter; what it leaves is undefined."""
        packed = _pack(arrays, self._device)
        self._buffer[: len(packed)].copy_(packed, non_blocking=True)


def _ends(arrays: Sequence[np.ndarray]) -> list[int]:
    """The offsets in one buffer, in bytes, at which each array ends and the next one begins."""
    ends, end = [], 0
    for array in arrays:
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        ends.append(end)
    return ends


def _pack(arrays: Sequence[np.ndarray], device: torch.device) -> torch.Tensor:
    """Copy the arrays, one after the other, to memory that the device can read. Torch keeps it until its copies are done."""
    ends = _ends(arrays)
    staging = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    host = staging.numpy()
    for start, array in zip([0, *ends], arrays, strict=False):
        host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return staging


def _views(buffer: torch.Tensor, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [
        buffer[start : start + array.nbytes].view(_torch_type(array)).view(array.shape)
        for start, array in zip([0, *_ends(arrays)], arrays, strict=False)
    ]


def _torch_type(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def end_of_work(device: torch.device) -> Callable[[], None]:
    """A function that waits for all work that was submitted to the device so far, but not for later work."""
    if device.type != "cuda":
        return lambda: None
    done = torch.cuda.Event()
    done.record()
    return done.synchronize


#: Waits for arrays that are being copied to the host, and returns them.
Fetch = Callable[[], list[np.ndarray]]


def fetch(*tensors: torch.Tensor) -> Fetch:
    """Start copying tensors to the host, after all work that was submitted to the device so far, but not after later work."""
    if not any(tensor.is_cuda for tensor in tensors):
        return lambda: [tensor.numpy() for tensor in tensors]
    arrivals = []
    for tensor in tensors:
        arrival = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        arrivals.append(arrival.copy_(tensor, non_blocking=True))
    done = torch.cuda.Event()
    done.record()

    def wait() -> list[np.ndarray]:
        done.synchronize()
        return [arrival.numpy() for arrival in arrivals]

    return wait
