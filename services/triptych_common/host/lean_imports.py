"""Leaves out what transformers' models import and no service here uses. An engine and an encoder start sooner and are smaller.

These are torch's compiler, of which models take three decorators; distributed tensors, for transformers' own tensor parallelism;
scipy, for a loss of object detection; and a second look at each of transformers' files. Without them the models' modules are
imported in 0.9 s instead of 2.6, and take 180 MB less.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
#: Module of the compiler that works without the rest. transformers makes masks with it.
_INDEPENDENT = f"{_COMPILER}._trace_wrapped_higher_order_op"
_AVAILABILITY = "transformers.utils.import_utils"
#: Functions with which transformers finds out what is installed.
_LEFT_OUT = ("is_scipy_available", "is_torch_distributed_available")
#: Reads all of transformers' files for what they have, and remembers it. It is asked twice: for a folder, and for a file in it.
_LOOK = "create_import_structure_from_path"


def install() -> None:
    """Leave them out of what is imported from now on. Where they are imported already, nothing changes."""
    if not any(isinstance(finder, _LeanFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LeanFinder())


def _unchanged(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator that concerns only code that is compiled, with or without arguments.

    What it gets before the compiler is loaded may be compiled later although its author did not want it, with the same results.
    """
    return function if function is not None else _unchanged


#: What the compiler has before it is loaded.
_DECORATORS = dict.fromkeys(("allow_in_graph", "assume_constant_result", "disable"), _unchanged)


class _DeferredCompiler(ModuleType):
    """torch's compiler until something is compiled: any other attribute loads it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.load()
        return getattr(self, name)

    def load(self) -> None:
        """Make it the real one.

        Two threads must not do so at once. With a lock beside those of imports, they could wait for each other.
        """
        spec = self.__spec__
        assert spec is not None  # noqa: S101
        deferring = spec.loader
        assert isinstance(deferring, _DeferringLoader)  # noqa: S101
        self.__class__ = ModuleType  # type: ignore[assignment] # as importlib.util.LazyLoader does
        for name in _DECORATORS:
            del self.__dict__[name]
        self.__loader__ = spec.loader = deferring.whole
        try:
            deferring.whole.exec_module(self)
        except BaseException:
            self.__class__ = _DeferredCompiler
            self.__loader__ = spec.loader = deferring
            deferring.exec_module(self)
            raise


class _DeferringLoader(Loader):
    """Args: whole: what loads the compiler in the end."""

    def __init__(self, whole: Loader) -> None:
        self.whole = whole

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredCompiler(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(_DECORATORS)


class _LoadedLoader(Loader):
    """Of a module that came while its parent was loaded."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed."""


class _LeavingOutLoader(Loader):
    """Args: whole: what loads the module that says what is installed."""

    def __init__(self, whole: Loader) -> None:
        self._whole = whole

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._whole.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._whole.exec_module(module)
        for name in _LEFT_OUT:
            if hasattr(module, name):  # else this version does not look
                setattr(module, name, lambda: False)
        if (look := getattr(module, _LOOK, None)) is not None:
            setattr(module, _LOOK, lambda path: look(_folder_of(path)))


def _folder_of(path: str | Path) -> Path:
    return Path(path).parent if Path(path).is_file() else Path(path)


class _LeanFinder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in (_COMPILER, _AVAILABILITY):
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and (whole := spec.loader) is not None:
                spec.loader = _DeferringLoader(whole) if fullname == _COMPILER else _LeavingOutLoader(whole)
            return spec
        compiler = sys.modules.get(_COMPILER)
        if isinstance(compiler, _DeferredCompiler) and fullname.startswith(f"{_COMPILER}.") and fullname != _INDEPENDENT:
            compiler.load()  # its modules expect it to be whole
            if fullname in sys.modules:
                return ModuleSpec(fullname, _LoadedLoader())
        return None
