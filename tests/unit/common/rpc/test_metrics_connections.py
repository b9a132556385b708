"""The metrics port serves a few connections at once, and does not start a thread for each further one."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request

from prometheus_client import CollectorRegistry
from triptych_common.rpc import metrics_server


def test_connections_that_send_nothing_take_few_threads_and_end(monkeypatch) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 1.0)
    server = metrics_server._listen("127.0.0.1", 0, CollectorRegistry())
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    before = threading.active_count()
    idle = [socket.create_connection(server.server_address) for _ in range(40)]
    try:
        assert idle[-1].recv(1) == b""  # closed: the last of them is one too many
        assert threading.active_count() - before <= metrics_server._MAX_SCRAPES
        assert idle[0].recv(1) == b""  # closed after the timeout
        _wait_for_end_of_threads(before)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            assert answer.status == 200
    finally:
        for one in idle:
            one.close()
        server.shutdown()
        server.server_close()
        serving.join()


def test_connections_that_send_a_byte_now_and_then_end_too(monkeypatch) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 1.0)
    server = metrics_server._listen("127.0.0.1", 0, CollectorRegistry())
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    before = threading.active_count()
    slow = [socket.create_connection(server.server_address) for _ in range(metrics_server._MAX_SCRAPES)]
    try:
        end_s = time.monotonic() + 20
        while slow:
            assert time.monotonic() < end_s
            for one in [*slow]:
                try:
                    one.send(b"G")
                except ConnectionError:
                    slow.remove(one)
                    one.close()
            time.sleep(0.1)
        _wait_for_end_of_threads(before)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def _wait_for_end_of_threads(before: int) -> None:
    """A client sees its connection closed a moment before the server has its place free again."""
    end_s = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < end_s
        time.sleep(0.01)
