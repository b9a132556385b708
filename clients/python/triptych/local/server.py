"""`triptych serve` as a child process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from triptych.errors import StartupError
from triptych.installation import install_command

#: How much of the services' output an error shows, in lines and bytes.
_NUM_LAST_LINES, _MAX_LAST_BYTES = 20, 16 * 1024
#: Time for the services to stop after SIGTERM, in seconds. Then they are killed.
_STOP_S = 60.0
#: Free ports, unless the caller chooses them.
_FREE_PORTS = {"port": 0, "grpc_port": 0, "frontend_port": 0, "encoder_port": 0, "engine_port": 0}


@dataclass(frozen=True)
class Addresses:
    """Where the services of this machine are."""

    #: Name of the model in requests.
    model: str
    #: URL of the OpenAI-compatible REST interface.
    gateway: str
    #: host:port of the gateway's gRPC interface.
    grpc: str
    #: host:port of each service.
    frontends: tuple[str, ...]
    encoders: tuple[str, ...]
    engines: tuple[str, ...]

    @classmethod
    def parse(cls, line: bytes) -> Addresses:
        """What `triptych serve` writes to its `--ready-fd`."""
        fields: dict[str, Any] = json.loads(line)
        services = (tuple(fields[name]) for name in ("frontends", "encoders", "engines"))
        return cls(fields["model"], fields["gateway"], fields["grpc"], *services)


class LocalServer:
    """Runs all services of one model on this machine, as one child process with children of its own.

    The constructor returns when the services take requests. They stop at `close`, at the end of a `with` block, when the object is
    garbage collected, and when this process ends in any way, SIGKILL included.

    Args:
        model: a directory, a GGUF file, a built-in name or a hub id.
        log_level: write the services' log from this level on to standard error. By default nothing is shown.
        log_file: append the services' log to this file instead.
        engine, frontend, encoder, gateway: settings of single services, as `{"max_num_seqs": 64}`.
        options: options of `triptych serve`, as `max_model_len=512`. Ports are free ones unless given.

    Raises:
        StartupError: triptych-server is not installed, or the services cannot start. The message has their last lines.
    """

    def __init__(
        self,
        model: str,
        *,
        log_level: str | None = None,
        log_file: str | os.PathLike[str] | None = None,
        engine: Mapping[str, object] | None = None,
        frontend: Mapping[str, object] | None = None,
        encoder: Mapping[str, object] | None = None,
        gateway: Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        if importlib.util.find_spec("triptych_cli") is None:
            raise StartupError(f"the services are not installed in this environment; run: {install_command('triptych', 'local')}")
        arguments = [model, *flags({**_FREE_PORTS, **options, "log_level": log_level})]
        for service, settings in (("engine", engine), ("frontend", frontend), ("encoder", encoder), ("gateway", gateway)):
            arguments += flags(settings or {}, service)
        #: What the services write, unless it goes to standard error. A nameless file is there for the messages of errors.
        self._log: IO[bytes] | None = None
        if log_file is not None:
            self._log = Path(log_file).open("ab+")  # noqa: SIM115 - open as long as the services run
        elif log_level is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process, ready = _start(arguments, self._log)
        self._finalizer = weakref.finalize(self, _stop, self._process, self._log, os.getpid())
        try:
            line = ready.read()
            if not line.endswith(b"\n"):
                code = self._process.wait()
                raise StartupError(f"the services could not start (exit code {code}){_last_lines(self._log)}")
        except BaseException:
            self.close()
            raise
        finally:
            ready.close()
        self.addresses = Addresses.parse(line)

    @property
    def pid(self) -> int:
        """Process id of `triptych serve`."""
        return self._process.pid

    def check(self) -> None:
        """Raise StartupError if the services have ended by themselves. One service that dies is started again, and is no error."""
        if self._finalizer.alive and self._process.poll() is not None:
            raise StartupError(f"the services have ended (exit code {self._process.returncode}){_last_lines(self._log)}")

    def close(self) -> None:
        """Stop all services. Calls after the first do nothing."""
        self._finalizer()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def flags(settings: Mapping[str, object], service: str = "") -> Iterator[str]:
    """The command-line arguments for settings by name. None leaves a setting at its default.

    Args:
        settings: as `{"max_model_len": 512, "cuda_graphs": False}`.
        service: engine, encoder, frontend or gateway; empty for the options of `triptych serve` itself.
    """
    prefix = f"{service}." if service else ""
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{prefix}{flag}" if value else f"--{prefix}no-{flag}"
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            yield f"--{prefix}{flag}={text}"


def _last_lines(log: IO[bytes] | None) -> str:
    """The end of the services' output, to append to a message; empty where it went to standard error."""
    if log is None:
        return ""
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), _MAX_LAST_BYTES, max(0, size - _MAX_LAST_BYTES)).decode(errors="replace")
    lines = tail.strip().splitlines()[-_NUM_LAST_LINES:]
    return ":\n" + "\n".join(lines) if lines else ""


def _start(arguments: list[str], log: IO[bytes] | None) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start `triptych serve`. Returns the process, and the pipe on which it writes its addresses."""
    read_end, write_end = os.pipe()
    ready = os.fdopen(read_end, "rb")
    serve = [sys.executable, "-m", "triptych_cli", "serve", *arguments]
    output: Any = log if log is not None else sys.__stderr__
    try:
        process = subprocess.Popen(
            [*serve, f"--ready-fd={write_end}", f"--parent-pid={os.getpid()}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write_end,),
            # A terminal's Ctrl-C interrupts the program, not its services.
            start_new_session=True,
        )
    except BaseException:
        ready.close()
        raise
    finally:
        os.close(write_end)
    return process, ready


def _stop(process: subprocess.Popen[bytes], log: IO[bytes] | None, owner_pid: int) -> None:
    """Stop the services, unless this is a fork of the process that started them."""
    if os.getpid() != owner_pid:
        return
    try:
        process.terminate()
        process.wait(_STOP_S)
    except BaseException as error:
        # A second Ctrl-C does not wait.
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        if log is not None:
            log.close()
