"""The Triton kernels, compiled ahead of time for GPUs that are not here: they fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
TESTS = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.parametrize(("capability", "shared_memory"), [(90, 227 << 10), (89, 99 << 10)], ids=["H100", "L4"])
def test_they_fit_into_the_processors_of(capability: int, shared_memory: int, tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "support.compile_for_gpu", str(capability), str(shared_memory)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout.splitlines()[-1])
    assert len(kernels) == 25
    print(done.stdout)
    for name, used in kernels.items():
        assert used["shared"] <= shared_memory, name
        # Values that are kept in local memory are slow. Prompts' tiles are fastest with a few of them, as measured on an H200.
        assert used["stack"] <= (512 if name.startswith("prompt") else 0), name
