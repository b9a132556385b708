"""Ranks on several hosts, of which all but the first are threads of this process here. Their workers are processes."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.builders.engine import a_request
from support.drivers.worker_engine import WAIT_S, Engine, assert_expected, some_requests
from support.fakes.worker import CRASH, HANG, HalfRefusing, Slow, a_worker
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.executor import link, worker_group
from triptych_engine.executor.channel import Channel
from triptych_engine.executor.link import answer, dial, read_secret
from triptych_engine.executor.node import Node
from triptych_engine.executor.nodes import NodeHello, Nodes
from triptych_engine.executor.protocol import WorkerLostError

SECRET = b"a secret of at least 32 bytes, for tests"
RANKS, NODES = 4, 2


class Host:
    """A node other than the first one, in a thread."""

    def __init__(self, node: Node) -> None:
        self.node, self.error = node, ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.node.run()
        except StartupError as error:
            self.error = str(error)

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        """End it."""
        self.node.stop()
        self.join()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes(NODES, 0, SECRET, "these files")
    yield nodes
    nodes.close()


@pytest.fixture
def other(nodes: Nodes) -> Node:
    """The second node, which does not run yet."""
    return Node(NodeHello(1, NODES, "second", "these files", Path("/there")), "127.0.0.1", nodes.port, SECRET)


@pytest.fixture
def host(other: Node) -> Iterator[Host]:
    host = Host(other)
    yield host
    host.stop()


@pytest.fixture
def engine(started: list[Engine], host: Host, nodes: Nodes) -> Engine:
    started.append(Engine(a_worker(step_timeout_s=5.0, num_workers=RANKS, nodes=nodes)))
    return started[0]


def answers(engine: Engine) -> None:
    requests = some_requests()
    engine.tokens.clear()
    engine.finish(*requests)
    assert_expected(engine, requests)


def test_all_nodes_compute_the_same(engine: Engine) -> None:
    answers(engine)
    commands = [psutil.Process(pid).cmdline() for pid in engine.executor.pids]
    assert ["127.0.0.1" in command for command in commands] == [False, False, True, True], "half of them have connected"
    assert not any(SECRET.decode() in word for command in commands for word in command)


def test_what_a_rank_of_another_node_does_ends_the_request_that_is_the_reason(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    before, requests = engine.executor.pids, some_requests()
    engine.finish(*requests[:3], a_request("bad", [CRASH, 1]), *requests[3:])
    assert_expected(engine, requests)
    assert engine.last["bad"].error is not None
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert "was ended by SIGSEGV" in caplog.text


def test_a_rank_of_another_node_that_hangs_is_ended_with_its_stacks(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    before, requests = engine.executor.pids, some_requests()
    engine.finish(*requests, a_request("bad", [HANG, 1]))
    assert_expected(engine, requests)
    assert engine.last["bad"].error is not None
    assert not any(psutil.pid_exists(pid) for pid in before)
    assert len(re.findall(r"Current thread|most recent call first", capfd.readouterr().err)) >= RANKS


def test_a_node_that_comes_back_goes_on(engine: Engine, host: Host, other: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Its workers end with it. The engine waits for it, and for nothing else."""
    answers(engine)
    before = engine.executor.pids
    host.stop()
    assert not any(psutil.pid_exists(pid) for pid in before[RANKS // 2 :])
    again = Host(replace(other, _is_over=threading.Event(), _workers={}))
    try:
        answers(engine)
        assert not set(before) & set(engine.executor.pids)
        assert "node 1 is gone" in caplog.text
    finally:
        engine.stop()
        again.stop()


def test_an_engine_that_stops_waits_for_no_node(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    executor = a_worker(num_workers=RANKS, nodes=nodes)
    threading.Timer(0.3, executor.close).start()
    with pytest.raises(StartupError, match="the engine is stopping"):
        executor.load()
    assert "waiting for node 1" in caplog.text


def test_the_workers_of_a_node_end_when_the_engine_has(engine: Engine, host: Host) -> None:
    pids = engine.executor.pids
    engine.stop()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_model_that_a_rank_of_another_node_refuses(nodes: Nodes, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "_GRACE_S", 0.2)
    executor = a_worker(HalfRefusing, num_workers=NODES, nodes=nodes)
    try:
        with pytest.raises(UnsupportedModelError, match="this rank is of no kind that is known"):
            executor.load()
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fingerprint": "others"}, "the model there, /there, is another one"),
        ({"num_nodes": 3}, "nnodes is 3 there and 2 at"),
        ({"node_rank": 2}, "node_rank is 2, and the others are 1 to 1"),
        ({"node_rank": 0}, "node_rank is 0, and the others are 1 to 1"),
    ],
    ids=["model", "nnodes", "too-high", "zero"],
)
def test_a_node_that_differs_is_refused(other: Node, change: dict, why: str, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(replace(other, hello=replace(other.hello, **change)))
    host.join()
    assert why in host.error
    assert why in caplog.text


def test_who_has_another_key_gets_nothing_through(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PermissionError, match="another key"):
        dial("127.0.0.1", nodes.port, b"another secret of at least 32 bytes")
    stranger = socket.create_connection(("127.0.0.1", nodes.port))
    with stranger as sock, contextlib.suppress(ConnectionResetError):  # sends something at once, and no proof
        sock.sendall(bytes(200))
        while sock.recv(4096):
            pass
    until(lambda: caplog.text.count("was refused") == 2)  # the other end logs it after it has closed the connection
    channel = dial("127.0.0.1", nodes.port, SECRET)
    channel.close()


def test_what_was_proven_to_one_end_is_no_proof_to_the_other() -> None:
    """An end without the key that sends back all that it gets is refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def mirror() -> None:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(ConnectionResetError):
                while data := sock.recv(4096):
                    sock.sendall(data)

        threading.Thread(target=mirror, daemon=True).start()
        with pytest.raises(PermissionError):
            dial("127.0.0.1", listener.getsockname()[1], SECRET)


def test_a_connection_to_a_node_is_a_channel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[Channel] = []
        thread = threading.Thread(target=lambda: accepted.append(answer(listener.accept()[0], SECRET)))
        thread.start()
        channel = dial("127.0.0.1", listener.getsockname()[1], SECRET)
        thread.join()
        channel.send({"large": bytes(1 << 20)})
        assert accepted[0].receive(WAIT_S) == {"large": bytes(1 << 20)}
        channel.close()
        with pytest.raises(EOFError):
            accepted[0].receive(WAIT_S)
        accepted[0].close()


@pytest.mark.parametrize(
    ("key", "why"), [(None, "nnodes needs node_key_file"), (b"short\n", "has 5 bytes; at least 32"), (b"", "has 0 bytes")]
)
def test_a_key_that_is_none(tmp_path: Path, key: bytes | None, why: str) -> None:
    file = None
    if key is not None:
        (file := tmp_path / "key").write_bytes(key)
    with pytest.raises(StartupError, match=why):
        read_secret(file)


def test_a_port_that_is_taken(nodes: Nodes) -> None:
    with pytest.raises(StartupError, match=f"master_port {nodes.port}: Address already in use"):
        Nodes(NODES, nodes.port, SECRET, "these files")


def test_a_node_that_is_gone_starts_nothing(nodes: Nodes) -> None:
    with pytest.raises(WorkerLostError, match="node 1 is gone"):
        nodes.start(1)


def test_an_engine_that_waits_for_a_node_stops_at_once(engine: Engine, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    host.stop()
    engine.core.add(a_request("waits", [1, 2, 3]))
    until(lambda: "waiting for node 1" in caplog.text)
    began = time.monotonic()
    engine.stop()
    assert time.monotonic() - began < 10, "30 s is what a loop gets that does not end"


def test_a_second_node_of_a_rank_waits_until_the_first_is_gone(
    engine: Engine, host: Host, other: Node, caplog: pytest.LogCaptureFixture
) -> None:
    before = engine.executor.pids
    second = Host(replace(other, hello=replace(other.hello, instance="third"), _is_over=threading.Event(), _workers={}))
    until(lambda: "there is a node 1 already" in caplog.text)
    answers(engine)
    assert engine.executor.pids == before, "the first is not disturbed"
    host.stop()
    answers(engine)
    assert engine.executor.pids != before
    engine.stop()
    second.stop()


def test_a_node_that_is_lost_while_the_model_is_loaded_loads_it_again(nodes: Nodes, other: Node) -> None:
    first = Host(replace(other, _is_over=threading.Event(), _workers={}))
    executor = a_worker(Slow, num_workers=NODES, nodes=nodes)
    loading = threading.Thread(target=executor.load)
    loading.start()
    until(lambda: bool(first.node._workers))
    first.stop()
    second = Host(other)
    loading.join(WAIT_S)
    assert not loading.is_alive()
    executor.check_health()
    executor.close()
    second.stop()


def test_strangers_that_say_nothing_keep_nobody_out(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(nodes, "_unproven", threading.Semaphore(4))
    strangers = [socket.create_connection(("127.0.0.1", nodes.port)) for _ in range(12)]
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(OSError):
                dial("127.0.0.1", nodes.port, SECRET).close()
                break
            assert time.monotonic() < deadline
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_connection_that_cannot_be_taken_is_not_the_last_one(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when there is no descriptor or thread left."""
    start, failures = threading.Thread.start, iter([True])

    def fails_once(thread: threading.Thread) -> None:
        if thread.name == "node" and next(failures, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    socket.create_connection(("127.0.0.1", nodes.port)).close()
    until(lambda: "can't start new thread" in caplog.text)
    dial("127.0.0.1", nodes.port, SECRET).close()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
