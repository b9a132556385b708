"""Models are right with each instruction set below this CPU's: ours, ATen and oneDNN all use the lower one.

`make test-levels` runs the tests of kernels so, and with the lowest one those of models.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from triptych_common.host.cpu import ISA_VARIABLE, isas_of_this_cpu

PARITY = Path(__file__).with_name("test_bfloat16_parity.py")


*BETWEEN, LOWEST = isas_of_this_cpu()[1:] or [""]


@pytest.mark.skipif(not LOWEST, reason="this CPU has no lower level")
@pytest.mark.parametrize("isa", [*(pytest.param(isa, marks=pytest.mark.long) for isa in BETWEEN), LOWEST])
def test_bfloat16_parity(isa: str):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PARITY)]
    done = subprocess.run(command, env={**os.environ, ISA_VARIABLE: isa}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
