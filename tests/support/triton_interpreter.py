"""Makes Triton's interpreter faster, which computes the same.

For each kernel, and again for each function that a kernel calls, it looks through all names of `triton.language` and replaces the
operations by its own. That takes longer than what small kernels compute.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def prepare_interpreter() -> None:
    """Do it once, if Triton's interpreter is imported."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None and not isinstance(interpreter._patch_lang, _Patch):
        interpreter._patch_lang = _Patch(interpreter)
        interpreter._patch_builtin = _patch_builtin(interpreter)
        interpreter._get_np_dtype = _np_dtype(interpreter)


class _Patch:
    """Replaces what a kernel's module sees of `triton.language`, unless it is replaced already."""

    def __init__(self, interpreter: Any) -> None:
        self._patch, self._nothing, self._language = interpreter._patch_lang, interpreter._LangPatchScope, interpreter.tl
        self._replaced: set[int] = set()

    def __call__(self, function: Any) -> Any:
        languages = (self._language, self._language.core)
        seen = {id(value) for value in function.__globals__.values() if inspect.ismodule(value) and value in languages}
        if seen and seen <= self._replaced:
            return self._nothing()
        scope, before = self._patch(function), self._replaced
        restore, self._replaced = scope.restore, before | seen

        def restored() -> None:
            restore()
            self._replaced = before

        scope.restore = restored
        return scope


def _patch_builtin(interpreter: Any) -> Callable[..., None]:
    names: dict[int, list[str]] = {}
    is_builtin = interpreter.tl.core.is_builtin

    def patch(package: Any, builder: Any, scope: Any) -> None:
        if id(package) not in names:
            names[id(package)] = [name for name, member in inspect.getmembers(package) if is_builtin(member)]
        for name in names[id(package)]:
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, builder, scope)

    return patch


def _np_dtype(interpreter: Any) -> Callable[[Any], np.dtype]:
    types: dict[str, np.dtype] = {}
    language, original = interpreter.tl, interpreter._get_np_dtype

    def np_dtype(dtype: Any) -> np.dtype:
        if isinstance(dtype, language.block_type):
            dtype = dtype.element_ty
        if isinstance(dtype, language.pointer_type):
            return original(dtype)
        if dtype.name not in types:
            types[dtype.name] = original(dtype)
        return types[dtype.name]

    return np_dtype
