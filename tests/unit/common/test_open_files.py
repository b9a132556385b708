"""The limit on open files, which is a limit on streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource
from triptych_common.host.open_files import raise_open_files_limit
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, min(hard, {hard})))
raise_open_files_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
@pytest.mark.parametrize(("soft", "hard", "expected"), [(64, 4000, "4000 4000"), (4000, 4000, "4000 4000")])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, expected: str) -> None:
    program = [sys.executable, "-c", _PROGRAM.format(soft=soft, hard=hard)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == expected


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits")
@pytest.mark.parametrize(("soft", "expected"), [(16, 1), (64, 24), (1024, 896), (4000, 2000)])
def test_connections_leave_files_for_the_service_itself(soft: int, expected: int) -> None:
    program = (
        "import resource; from triptych_common.host.open_files import max_accepted_connections as most; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {soft})); print(most(2000))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == expected
