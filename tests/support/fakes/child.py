"""A program for the supervisor to run: `python child.py DIRECTORY NAME [BEHAVIOUR]`.

It appends its process id to DIRECTORY/NAME.pids. Then it is ready and accepts connections on DIRECTORY/NAME.sock. On SIGTERM it
appends its name to DIRECTORY/stopped and exits with 0. A line that is sent to its socket is the code with which it must exit.

Behaviours: refuse (prints the reason and exits with 1 before it is ready), crash (exits with 3 at its first connection), stubborn
(ignores SIGTERM), parent (starts a grandchild that outlives it).
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def main(directory: Path, name: str, behaviour: str = "") -> None:
    with Path(directory, f"{name}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if behaviour == "refuse":
        print("first line of", name)
        sys.exit(f"{name} cannot start: the model is unsupported")

    def stop(number: int, frame: object) -> None:
        with Path(directory, "stopped").open("a") as stopped:
            stopped.write(f"{name}\n")
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else stop)
    if behaviour == "parent":
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with Path(directory, f"{name}.pids").open("a") as pids:
            pids.write(f"{grandchild.pid}\n")
    path = Path(directory, f"{name}.sock")
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        for number in range(30):
            print(f"{name} line {number}", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                order = connection.recv(16)
                if behaviour == "crash":
                    sys.exit(3)
                if order:
                    print(f"{name} was told to end", flush=True)
                    sys.exit(int(order))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
