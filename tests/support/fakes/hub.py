"""A model hub on loopback. It answers with the status codes and headers of the real one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _git_id(content: bytes) -> str:
    """40 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:40]


@dataclass
class FakeHub:
    """What the hub says. Change it while it runs."""

    #: Name of a file -> its content.
    files: dict[str, bytes] = field(default_factory=dict)
    #: (status, X-Error-Code, X-Error-Message) for every call about the repository; None answers.
    refusal: tuple[int, str, str] | None = None
    #: The same for its files only, as at a gated repository, whose description is public.
    file_refusal: tuple[int, str, str] | None = None
    #: The authorization headers that callers sent.
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def running_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve until the block ends. `hub.url` is the address for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            hub.tokens.append(self.headers.get("authorization"))
            path = self.path.partition("?")[0]
            is_file = not path.startswith("/api/")
            refusal = hub.refusal or (hub.file_refusal if is_file else None)
            if refusal is not None:
                status, code, message = refusal
                headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
                self._send(status, json.dumps({"error": message}).encode(), headers)
            elif is_file and path.partition(f"/resolve/{COMMIT}/")[2] in hub.files:
                content = hub.files[path.partition(f"/resolve/{COMMIT}/")[2]]
                self._send(200, content, {"ETag": f'"{_git_id(content)}"', "X-Repo-Commit": COMMIT})
            elif is_file:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            elif "/tree/" in path:
                tree = [
                    {"type": "file", "path": name, "size": len(content), "oid": _git_id(content)}
                    for name, content in hub.files.items()
                ]
                self._send(200, json.dumps(tree).encode(), {})
            else:
                siblings = [{"rfilename": name} for name in hub.files]
                about = {
                    "id": "org/model",
                    "modelId": "org/model",
                    "sha": COMMIT,
                    "siblings": siblings,
                    "private": False,
                    "tags": [],
                }
                self._send(200, json.dumps(about).encode(), {})

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
