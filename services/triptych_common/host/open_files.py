"""The limit on open files and connections of this process."""

from __future__ import annotations

import contextlib
import sys

#: Enough for the number of streams that any service takes.
_WANTED = 65_536
#: What a process needs beside the connections that it accepts: libraries, logs, its event loop, connections to other services.
_NUM_OWN_FILES = 40


def raise_open_files_limit() -> None:
    """Raise the soft limit as far as the hard limit allows.

    Shells and systemd set 1,024 by default, for programs that use select(). Ours do not use it, and each stream is a connection.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # The system may have a lower limit of its own.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_accepted_connections(most: int) -> int:
    """Connections that this process can accept and still open what it needs itself; `most` where nothing limits them."""
    if sys.platform == "win32":
        return most
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, soft - max(_NUM_OWN_FILES, soft // 8)))
