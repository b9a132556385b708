"""Replaces this process with another program, which dies when the parent of this process dies.

Run as a script: `python -I -S tether.py PARENT_PID PROGRAM [ARGUMENT...]`. A supervisor that is killed with SIGKILL cannot stop its
children, so the kernel does it (prctl(2), PR_SET_PDEATHSIG, which survives exec). This is a separate program, because code between
fork and exec may deadlock in a process with threads. On systems other than Linux it only runs the program.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, *argv = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent_pid):
            # The parent died before the line above.
            sys.exit(1)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot run {argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
