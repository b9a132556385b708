"""What `triptych serve` does for a program that starts it: tells when it is ready, and stops when the program ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence

from triptych_cli.errors import CommandError
from triptych_cli.stack.plan import Service
from triptych_cli.stack.service_flags import SERVICES

#: Pause between two looks at the parent, in seconds.
_LOOK_S = 0.2


def check_ready_fd(descriptor: int) -> None:
    """Raise CommandError if `--ready-fd` names no open file descriptor."""
    try:
        os.fstat(descriptor)
    except OSError as error:
        raise CommandError(f"--ready-fd {descriptor}: no such file descriptor is open", exit_code=2) from error


def write_addresses(descriptor: int, models: Sequence[str], services: Sequence[Service]) -> None:
    """Write the models' names and all addresses as one line of JSON, and close the descriptor."""
    (gateway,) = (service for service in services if service.kind == "gateway")
    by_kind = {kind: [service.address for service in services if service.kind == kind] for kind in SERVICES}
    line = {
        "model": models[0],
        "models": models,
        "gateway": gateway.url,
        "grpc": gateway.grpc_address,
        "frontends": by_kind["frontend"],
        "encoders": by_kind["encoder"],
        "engines": by_kind["engine"],
    }
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def stop_with_parent(pid: int) -> None:
    """Send SIGTERM to this process when the process `pid`, which must be its parent, has ended.

    The kernel's own signal (PR_SET_PDEATHSIG) comes when the parent's thread that started this process ends, so it is of no use to
    programs with threads. Waiting for a pipe to close does not help either, because a fork of the parent keeps it open.
    """
    threading.Thread(target=_watch, args=(pid,), name="parent-watch", daemon=True).start()


def _watch(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
