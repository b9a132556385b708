"""Computes a runner's steps on torch's meta device, as on a GPU: shapes, dtypes and devices are those of a step, and nothing is
computed.

As on a GPU, an operation on tensors of the host and of the device is an error. So is whatever waits for the device: `.item()`,
`.cpu()`, `nonzero`. Triton's kernels are not run; what they are given must be on the device.
"""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.transfer import HostToDevice
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

META = torch.device("meta")
#: Where a graph of objects leaves what belongs to a runner.
_OUTSIDE = (ModuleType, type, FunctionType)


class Launches(TorchDispatchMode):
    """Notes which kernels a GPU would launch: Triton's, and those of torch's operations that compute something.

    Args:
        computes: whether Triton's kernels run, on the host.
    """

    _FREE = frozenset(
        {
            "view", "unsafe_view", "reshape", "empty", "empty_strided", "new_empty", "slice", "select", "t", "transpose", "permute",
            "expand", "detach", "alias", "unsqueeze", "squeeze", "as_strided", "split", "split_with_sizes", "chunk", "unbind",
            "flatten", "lift_fresh",
        }
    )  # fmt: skip

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, computes: bool = True) -> None:
        super().__init__()
        self.names: list[str] = []
        self._device = torch.device("cpu") if computes else META
        run = InterpretedFunction.run

        def noting(function: InterpretedFunction, *args: Any, **options: Any) -> Any:
            self.names.append(function.fn.__name__)
            if computes:
                with _disable_current_modes():
                    return run(function, *args, **options)
            elsewhere = [value for value in args if isinstance(value, torch.Tensor) and value.device != META]
            assert not elsewhere, f"{function.fn.__name__} is given tensors of the host"
            return None

        monkeypatch.setattr(InterpretedFunction, "run", noting)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.strip("_").removesuffix("_like")
        if name not in self._FREE and self._is_launched(name, result, args):
            self.names.append(name)
        return result

    def _is_launched(self, name: str, result: Any, args: tuple[Any, ...]) -> bool:
        """What the host computes for itself is no launch, nor what copies nothing, nor a copy from the host."""
        if name in ("to", "contiguous", "to_copy") and (result is args[0] or args[0].device != self._device):
            return False
        if name == "copy" and args[1].device != self._device:
            return False
        tensors = [value for value in (result, *args) if isinstance(value, torch.Tensor)]
        return not tensors or any(tensor.device == self._device for tensor in tensors)


def multiply_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tl.dot` multiply bfloat16 under Triton's interpreter, which has these numbers as integers of 16 bits."""
    multiply = InterpreterBuilder.create_dot

    def widened(number: TensorHandle) -> TensorHandle:
        if number.dtype.scalar != tl.bfloat16:
            return number
        return TensorHandle((number.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
        return multiply(builder, widened(a), widened(b), *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def move_to_pretended_gpu(runner: ModelRunner) -> None:
    """Move all that a runner has on its device to the pretended one. The runner computes nothing real from then on."""
    for owner in _reachable(runner):
        if isinstance(owner, torch.Tensor):
            continue
        for name in ("device", "_device"):
            if isinstance(_own(owner, name), torch.device):
                object.__setattr__(owner, name, META)
        if isinstance(owner, HostToDevice):
            owner._packed = True
    for tensor in [one for one in _reachable(runner) if isinstance(one, torch.Tensor)]:
        with torch.no_grad():
            torch.utils.swap_tensors(tensor, _moved(tensor))


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    moved = tensor.detach().to(META)
    return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else moved


def _own(owner: object, name: str) -> object:
    if name in getattr(owner, "__dict__", {}) or name in getattr(type(owner), "__slots__", ()):
        return getattr(owner, name, None)
    return None


def _reachable(root: object) -> list[object]:
    """All objects that a runner holds, through attributes, containers and closures."""
    seen, found, todo = {id(root)}, [], [root]
    while todo:
        one = todo.pop()
        found.append(one)
        for other in gc.get_referents(one):
            is_code = isinstance(other, _OUTSIDE) and not (isinstance(other, FunctionType) and other.__closure__)
            if id(other) not in seen and not is_code:
                seen.add(id(other))
                todo += [other] if not isinstance(other, FunctionType) else list(other.__closure__ or ())
    return found
