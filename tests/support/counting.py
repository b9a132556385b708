"""Counts work, so that a test can limit it: torch operations and the bytes they write, calls of our kernels, Python calls.

Unlike times, the counts are the same on every machine and in every run.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Calls that do not belong to any item, such as those of a timer.
_MAX_OTHERS = 3
_BUILTIN = " > "
_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})


@dataclass
class DeviceWork:
    """Counts of dispatched work."""

    #: Name -> count. A composite operation counts once: in inference mode only the outer operation is dispatched.
    operations: Counter[str] = field(default_factory=Counter)
    #: Operation -> bytes that it wrote: its results, without views, or the modified argument.
    written_bytes: Counter[str] = field(default_factory=Counter)
    #: Entry point of our library -> count.
    kernels: Counter[str] = field(default_factory=Counter)

    @property
    def num_operations(self) -> int:
        return self.operations.total()

    @property
    def num_kernels(self) -> int:
        return self.kernels.total()

    @property
    def num_written_bytes(self) -> int:
        return self.written_bytes.total()


class CountedLibrary:
    """Wraps a loaded library of kernels, and counts the calls of each function."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> _CountedFunction:
        function = _CountedFunction(getattr(self._library, name), name, self.calls)
        setattr(self, name, function)
        return function


class _CountedFunction:
    def __init__(self, function: Any, name: str, calls: Counter[str]) -> None:
        # Attributes such as argtypes and restype are set on the wrapped function.
        vars(self).update(_function=function, _name=name, _calls=calls)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._function, name, value)

    def __call__(self, *args: Any) -> Any:
        self._calls[self._name] += 1
        return self._function(*args)


class _Operations(TorchDispatchMode):
    def __init__(self, work: DeviceWork) -> None:
        super().__init__()
        self._work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = str(func)
        self._work.operations[name] += 1
        given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        written = [tensor for tensor in _tensors(result) if _storage(tensor) not in given] or _changed(func, args)
        self._work.written_bytes[name] += sum(tensor.numel() * tensor.itemsize for tensor in written)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def _changed(func: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    """The arguments that the operation writes into; for a write at indices, the written values."""
    if func._schema.name.startswith("aten::index_"):
        return _tensors(args)[-1:]
    arguments = zip(func._schema.arguments, args, strict=False)
    return _tensors([arg for argument, arg in arguments if argument.alias_info and argument.alias_info.is_write])


@contextmanager
def device_work(library: CountedLibrary | None = None) -> Iterator[DeviceWork]:
    """Work that this thread dispatches in the block, and calls of the library in that time."""
    work = DeviceWork()
    before = library.calls.copy() if library else Counter()
    with _Operations(work):
        yield work
    work.kernels = library.calls - before if library else Counter()


@contextmanager
def python_calls(*packages: str) -> Iterator[Counter[str]]:
    """Calls that this thread makes in the block: of Python functions in these packages, and of built-in functions by them.

    Python functions count under `package.module:function`, built-in functions under `package.module:function > name`. A generator
    counts once per item. Comprehensions do not count, because newer interpreters do not call them.
    """
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(packages):
            return
        caller = f"{module}:{frame.f_code.co_qualname}"
        if event == "call" and frame.f_code.co_name not in _COMPREHENSIONS:
            calls[caller] += 1
        elif event == "c_call":
            calls[f"{caller}{_BUILTIN}{arg.__name__}"] += 1

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(previous)


def assert_per_item(
    few: Counter[str], num_few: int, many: Counter[str], num_many: int, num_functions: int, max_builtins: int
) -> None:
    """Assert that each additional item takes exactly `num_functions` calls of Python functions, and limit calls of built-in ones.

    Args:
        few, many: results of `python_calls` with `num_few` and `num_many` items.
        max_builtins: an upper bound, because newer interpreters may need fewer calls.
    """
    share: Counter[str] = Counter()
    for name in few.keys() | many.keys():
        calls = many[name] - few[name]
        share[name] = round(calls / (num_many - num_few))
        rest = calls - share[name] * (num_many - num_few)
        assert abs(rest) <= _MAX_OTHERS, f"{name}: {few[name]} times with {num_few} items, {many[name]} times with {num_many}"
    builtins = Counter({name: count for name, count in share.items() if _BUILTIN in name})
    assert (share - builtins).total() == num_functions, share - builtins
    assert builtins.total() <= max_builtins, builtins
