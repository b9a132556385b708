"""The environment in which torch starts: how OpenMP's threads wait, and the instruction set of each library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.cpu_levels import LEVELS
from triptych.errors import StartupError
from triptych_common.host.cpu import ISA_VARIABLE
from triptych_common.host.torch_env import set_torch_environment

LIBRARIES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
#: Instruction set -> what ATen and oneDNN report, and whether oneDNN packs bfloat16 weights.
CHOICES = {
    "x86-64-v4-amx": ("AVX512", "Intel AMX", True),  # the middle of a longer name
    "x86-64-v4-bf16": ("AVX512", "Intel AVX-512 with Intel DL Boost and bfloat16 support", True),
    "x86-64-v4-vnni": ("AVX512", "Intel AVX-512 with Intel DL Boost", True),
    "x86-64-v4": ("AVX512", "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions", True),
    "x86-64-v3-vnni": ("AVX2", "Intel AVX2 with Intel DL Boost", False),
    "x86-64-v3": ("AVX2", "Intel AVX2", False),
}
#: Prints what each library chose. oneDNN reports it when it computes for the first time.
PROGRAM = """
import json, re
from triptych_common.host.torch_env import set_torch_environment
set_torch_environment()
import torch
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_common.host.cpu import isas_of_this_cpu
torch.ops.mkldnn._linear_pointwise(torch.ones(4, 64), torch.ones(64, 64), None, "none", [], "")
load_kernels()
ours = {match[1] for match in re.finditer(r"triptych-cpu-(.*)-[0-9a-f]+[.]so", open("/proc/self/maps").read())}
packs = torch.ops.mkldnn._is_mkldnn_bf16_supported()
print(json.dumps([*ours, torch.backends.cpu.get_cpu_capability(), packs, isas_of_this_cpu()]))
"""


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", ISA_VARIABLE, *LIBRARIES):
        monkeypatch.setenv(name, "")  # so that the end of the test restores the earlier value
        monkeypatch.delenv(name)


def test_threads_wait_awake_only_for_a_moment() -> None:
    set_torch_environment()
    assert 0 < int(os.environ["GOMP_SPINCOUNT"]) <= 10_000
    assert not set(LIBRARIES) & set(os.environ)


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "300000"), ("OMP_WAIT_POLICY", "active")])
def test_values_in_the_environment_hold(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    set_torch_environment()
    assert os.environ[name] == value
    assert os.environ.get("GOMP_SPINCOUNT") == (value if name == "GOMP_SPINCOUNT" else None)


def test_an_instruction_set_that_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "x86-64-v2")
    with pytest.raises(StartupError, match="TRIPTYCH_CPU_ISA is 'x86-64-v2'; this CPU has"):
        set_torch_environment()


@pytest.mark.parametrize("isa", [isa for isa in LEVELS if isa.startswith("x86")])
def test_each_library_uses_the_forced_instruction_set(isa: str) -> None:
    """Without this, a test run that forces a level would still compute with what the CPU has."""
    environment = {**os.environ, ISA_VARIABLE: isa, "ONEDNN_VERBOSE": "all"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    aten, onednn, packs = CHOICES[isa]
    assert json.loads(lines[-1]) == [isa, aten, packs, [isa]]
    reported = next(line.partition("cpu,isa:")[2] for line in lines if "cpu,isa:" in line)
    assert onednn in reported if isa == "x86-64-v4-amx" else reported == onednn
