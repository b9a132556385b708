"""How many files and connections this process may have open."""

from __future__ import annotations

import contextlib
import sys

#: Enough for any number of streams that a service takes.
_WANTED = 65_536


def raise_open_files_limit() -> None:
    """Lift the soft limit as far as the hard one allows.

    Shells and systemd give 1,024 by default, for the sake of programs that use select(); ours do not, and each stream is a
    connection.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Systems may have a lower limit of their own.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
