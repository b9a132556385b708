"""Host arrays on their way to the device."""

from __future__ import annotations

import numpy as np
import torch

#: Tensors of all types may begin at multiples of this, in bytes.
_ALIGNMENT = 16


class HostToDevice:
    """Brings a step's arrays to the device: all in one copy, from pinned memory, without waiting for it.

    On a CPU the tensors are the arrays' own memory.

    Args:
        packed: join the arrays into one copy; by default where there is one to make.
    """

    def __init__(self, device: torch.device, *, packed: bool | None = None) -> None:
        self._device = device
        self._packed = device.type != "cpu" if packed is None else packed

    def __call__(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """The arrays as tensors on the device, in order. The arrays may be changed afterwards, unless the device is a CPU."""
        if not self._packed:
            return [torch.from_numpy(array) for array in arrays]
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        # torch keeps freed pinned memory until the copies from it are done.
        staging = torch.empty(end, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        host = staging.numpy()
        for start, array in zip(starts, arrays, strict=True):
            host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sent = staging.to(self._device, non_blocking=True)
        return [
            sent[start : start + array.nbytes].view(_torch_type(array)).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]


def _torch_type(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
