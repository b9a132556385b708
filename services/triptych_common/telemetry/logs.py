"""Logs: one line per event, with the service and the request id in each, and in JSON the trace."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Literal

from triptych_common.telemetry.trace_context import TraceContext, trace_var

#: Id of the request that the current task works for; empty outside of requests.
request_id_var: ContextVar[str] = ContextVar("request_id", default="")

LogFormat = Literal["text", "json"]


class _ContextFilter(logging.Filter):
    """Adds what the current task works for, unless the caller names it: `extra={"request_id": ..., "trace": ...}`."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = getattr(record, "request_id", None) or request_id_var.get()
        record.trace = getattr(record, "trace", None) or trace_var.get()
        return True


class _TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        request_id = f" [{record.request_id}]" if record.request_id else ""  # type: ignore[attr-defined]
        line = f"{clock} {record.levelname:<7} {self._service:<8}{request_id} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.request_id:  # type: ignore[attr-defined]
            entry["request_id"] = record.request_id  # type: ignore[attr-defined]
        trace: TraceContext | None = record.trace  # type: ignore[attr-defined]
        if trace is not None:
            entry |= {"trace_id": f"{trace.trace_id:032x}", "span_id": f"{trace.span_id:016x}"}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(service: str, level: str = "INFO", log_format: LogFormat = "text") -> None:
    """Send this process's logs to standard error. Replaces any earlier configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_ContextFilter())
    handler.setFormatter(_JsonFormatter(service) if log_format == "json" else _TextFormatter(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # At DEBUG, PIL logs what files say about themselves, and websockets logs messages.
    for noisy in ("httpx", "httpcore", "filelock", "urllib3", "asyncio", "PIL", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
