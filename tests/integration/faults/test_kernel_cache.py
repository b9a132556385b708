"""A damaged library in the cache of CPU kernels: it is not loaded, which would end the process with a bus error."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from triptych_engine.runner.cpu import kernel_build

_ISA = "x86-64-v3"
_CONTENT = bytes(range(256)) * 64
_WHOLE = _CONTENT + hashlib.sha256(_CONTENT).digest()


@pytest.mark.parametrize(
    ("library", "is_found"),
    [
        (_WHOLE, True),
        (_WHOLE[: len(_WHOLE) // 2], False),
        (_WHOLE[:-1], False),
        (_WHOLE[:5000] + bytes([_WHOLE[5000] ^ 0x10]) + _WHOLE[5001:], False),
        (b"", False),
    ],
    ids=["whole", "half", "cut", "flipped", "empty"],
)
def test_only_a_whole_library_is_found(library: bytes, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIPTYCH_KERNEL_DIR", raising=False)
    monkeypatch.setattr(kernel_build, "cache_dir", lambda: tmp_path)
    path = tmp_path / "kernels" / kernel_build._file_name(_ISA)
    path.parent.mkdir()
    path.write_bytes(library)
    assert kernel_build.find(_ISA) == (path if is_found else None)
