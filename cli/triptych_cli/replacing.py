"""Files that are replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from triptych_cli.errors import CommandError


def keep_owner_and_mode(new: Path, old: Path) -> None:
    """Give a file that replaces another one the owner and the mode of that one, if there is one.

    A service may run as another user, which could not read a file of this one.

    Raises:
        CommandError: the owner cannot be kept, because only root may give files away.
        OSError: something else failed.
    """
    try:
        before, now = old.stat(), new.stat()
    except FileNotFoundError:
        return
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        try:
            os.chown(new, before.st_uid, before.st_gid)
        except PermissionError as error:
            owner = f"user {before.st_uid}, group {before.st_gid}"
            raise CommandError(f"cannot keep the owner of {old} ({owner}); run this command as that user or as root") from error
    new.chmod(stat.S_IMODE(before.st_mode))
