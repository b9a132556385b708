"""How many GPUs a process would see."""

from __future__ import annotations

from pathlib import Path

import pytest
from triptych_common.host.gpus import num_nvidia_gpus


@pytest.mark.parametrize(("visible", "expected"), [(None, 2), ("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("0,1,2,3", 2)])
def test_gpus_that_a_process_sees(visible: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_nvidia_gpus(tmp_path) == expected
