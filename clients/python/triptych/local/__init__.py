"""Triptych's services on this machine, started by a Python program. Needs the extra `triptych[local]`."""

from triptych.local.server import LocalServer

__all__ = ["LocalServer"]
