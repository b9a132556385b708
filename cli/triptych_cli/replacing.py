"""Files that are replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def keep_owner_and_mode(new: Path, old: Path) -> None:
    """Give a file that replaces another one the owner and the mode of that one, if there is one: a service may run as another user.

    Raises:
        OSError: only root may give files away.
    """
    try:
        before, now = old.stat(), new.stat()
    except FileNotFoundError:
        return
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(new, before.st_uid, before.st_gid)
    new.chmod(stat.S_IMODE(before.st_mode))
