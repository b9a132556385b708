"""Prepares the process before any test imports torch.

OpenMP threads must not spin, because other programs run beside the tests. With TRIPTYCH_CPU_ISA, our kernels, ATen and oneDNN all
use that instruction set, as on a CPU that has no better one. Without a GPU, Triton's kernels run under its interpreter. This has to
be chosen before torch imports Triton.
"""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from triptych_common.host.torch_env import set_torch_environment
from xdist.scheduler import LoadFileScheduling

# Until the tests are collected: their imports create a million objects that stay, and take an eighth longer when it looks at them.
gc.disable()
set_torch_environment()
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
# A gateway that a test starts by `triptych serve` would run the batches in this user's cache.
os.environ["TRIPTYCH_GATEWAY_FILES_DIR"] = ""
# Examples have no deadline: the first one imports and loads what the others find loaded, and a busy machine stalls any of them.
settings.register_profile("triptych", deadline=None)
settings.load_profile("triptych")
#: Folders with something that lasts for a session of tests.
_SHARE = ("tests/browser/", "tests/integration/stack/shared/")


class _ByWhatIsStarted(LoadFileScheduling):
    """Gives the tests of a file to one process, and those of folders that share a stack or a browser, so that it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((folder for folder in _SHARE if path.startswith(folder)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByWhatIsStarted(config, log)


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_frozen() -> None:
    """Exclude what earlier modules made from garbage collection, as services do with what they import.

    A collection would scan a million objects of torch and transformers in half a second, and each start of a frontend or an engine
    has one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what happens when the time is over in which a request waits for a service that left."""
    monkeypatch.setattr("triptych_common.cluster.pool.GRACE_S", 1.0)
