"""The other hosts of an engine, as seen from the one that serves its requests. As in vLLM, hosts are nodes, and this is node 0.

Each node keeps a connection (`executor.node`). On it go orders, ("start" | "kill" | "dump", token), and come reports, ("started",
token, process id) and ("ended", token, how). A worker that was started connects twice by itself, for its two channels.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import StartupError

from triptych_engine.executor.channel import Channel
from triptych_engine.executor.link import TIMEOUT_S, answer
from triptych_engine.executor.protocol import WorkerLostError

log = logging.getLogger(__name__)
#: How long a worker may take from the order to start until it has connected, and a process to end that was killed, in seconds.
_START_S, _KILL_S = 60.0, 5.0
#: Time between two messages about nodes that are waited for, in seconds.
_REMIND_S = 30.0
#: Connections at once of which it is not known yet whose they are; further ones wait. Pause when none can be taken, in seconds.
_MAX_UNPROVEN, _ACCEPT_PAUSE_S = 64, 0.2


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node's first message. The answer is (why it is refused, whether it will be at each attempt); ("", False) if it is not."""

    node_rank: int
    num_nodes: int
    #: The same at each attempt of this node.
    instance: str
    #: Of the model's files, which must be the same on all nodes.
    fingerprint: str
    #: Where they are on that host.
    model_path: Path


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """The first message on a worker's connection."""

    token: str
    is_steps: bool


class RemoteProcess:
    """Implements `Process` on another node.

    Args:
        order: sends an order to the node.
    """

    steps: Channel
    preparations: Channel
    pid: int

    def __init__(self, token: str, model_path: Path, order: Callable[[str, str], None]) -> None:
        self.model_path = model_path
        self._token, self._order = token, order
        self._changed, self._how, self._arrived = threading.Condition(), "", set[str]()

    def arrived(self, name: str, value: Channel | int) -> None:
        """One of `steps`, `preparations` and `pid` is known."""
        with self._changed:
            setattr(self, name, value)
            self._arrived.add(name)
            self._changed.notify_all()

    def ended(self, how: str) -> None:
        """The process has ended, or nobody knows whether it has. Who reads from it notices."""
        with self._changed:
            self._how = self._how or how
            self._changed.notify_all()
            arrived = [getattr(self, name) for name in ("steps", "preparations") if name in self._arrived]
        for channel in arrived:
            channel.close()

    def connect(self) -> None:
        """Wait until it can be called. Raises WorkerLostError."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._arrived) == 3 or self._how, _START_S)
            if self._how or len(self._arrived) < 3:
                raise WorkerLostError(f"a worker on another node {self._how or f'did not start within {_START_S:g} s'}")

    def wait(self, timeout_s: float | None = None) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: self._how, _KILL_S if timeout_s is None else timeout_s):
                if timeout_s is None:
                    return "does not end"
                raise subprocess.TimeoutExpired(f"worker {self._token}", timeout_s)
            return self._how

    def kill(self) -> None:
        self._order("kill", self._token)
        how = self.wait()
        self.ended(how)

    def dump_stacks(self) -> None:
        self._order("dump", self._token)


class _Node:
    """A node that has connected."""

    def __init__(self, hello: NodeHello, channel: Channel) -> None:
        self.hello, self.channel = hello, channel
        self.processes: dict[str, RemoteProcess] = {}

    def order(self, what: str, token: str) -> None:
        with contextlib.suppress(OSError):  # it is lost, which its thread notices
            self.channel.send((what, token))


class Nodes:
    """Listens for the other nodes and their workers.

    Args:
        num_nodes: with this one.
        port: where to listen for the others, on all addresses.
        secret: see `executor.link`.
        fingerprint: of the model's files.

    Raises:
        StartupError: the port cannot be had.
    """

    def __init__(self, num_nodes: int, port: int, secret: bytes, fingerprint: str) -> None:
        self.num_nodes, self._secret, self._fingerprint = num_nodes, secret, fingerprint
        self._nodes: dict[int, _Node] = {}
        self._host = ""
        self._unproven = threading.Semaphore(_MAX_UNPROVEN)
        self._changed, self._is_closed = threading.Condition(), False
        try:
            self._listener = _listen(port)
        except OSError as error:
            raise StartupError(f"master_port {port}: {error.strerror}") from error
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="nodes", daemon=True).start()

    def wait(self) -> None:
        """Wait until all are there, for as long as it takes. Raises WorkerLostError when it is closed meanwhile."""
        with self._changed:
            while missing := [rank for rank in range(1, self.num_nodes) if rank not in self._nodes]:
                if self._is_closed:
                    raise WorkerLostError("the engine is stopping")
                log.info("waiting for %s on port %d", ", ".join(f"node {rank}" for rank in missing), self.port)
                self._changed.wait(_REMIND_S)

    def rendezvous(self) -> str:
        """Where the ranks can find each other: HOST:PORT, by which a node has reached this host, and a port that is free now."""
        with _listen(0) as free:
            return f"{self._host}:{free.getsockname()[1]}"

    def start(self, node_rank: int) -> RemoteProcess:
        """Start a worker on another node. Raises WorkerLostError if that is not there."""
        token = secrets.token_hex(16)
        with self._changed:
            node = self._nodes.get(node_rank)
            if node is None:
                raise WorkerLostError(f"node {node_rank} is gone")
            process = node.processes[token] = RemoteProcess(token, node.hello.model_path, node.order)
        node.order("start", token)
        return process

    def close(self) -> None:
        """Let the nodes go; they end their workers."""
        with self._changed:
            self._is_closed = True
            nodes = list(self._nodes.values())
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for node in nodes:
            node.channel.close()

    def _accept(self) -> None:
        while True:
            self._unproven.acquire()
            sock: socket.socket | None = None
            try:
                sock, address = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock, _plain(address[0])), name="node", daemon=True).start()
            except (OSError, RuntimeError) as error:  # perhaps this process has no descriptor or thread left
                self._unproven.release()
                if sock is not None:
                    sock.close()
                if self._is_closed:
                    return
                log.warning("a connection to the port for nodes could not be taken: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)

    def _serve(self, sock: socket.socket, address: str) -> None:
        try:
            host = _plain(sock.getsockname()[0])
            channel = answer(sock, self._secret)
            hello: NodeHello | WorkerHello = channel.receive(TIMEOUT_S)
        except (OSError, EOFError) as error:
            log.warning("a connection from %s to the port for nodes was refused: %s", address, str(error) or "it ended")
            sock.close()
            return
        finally:
            self._unproven.release()
        if isinstance(hello, WorkerHello):
            with self._changed:
                found = [node.processes[hello.token] for node in self._nodes.values() if hello.token in node.processes]
            if not found:
                channel.close()
            for process in found:
                process.arrived("steps" if hello.is_steps else "preparations", channel)
        elif why := self._why_refused(hello):
            log.error("the node at %s is refused: %s", address, why)
            with contextlib.suppress(OSError):
                channel.send((why, True))
            channel.close()
        else:
            self._keep(_Node(hello, channel), address, host)

    def _why_refused(self, hello: NodeHello) -> str:
        if not 1 <= hello.node_rank < self.num_nodes:
            return f"node_rank is {hello.node_rank}, and the others are 1 to {self.num_nodes - 1}"
        if hello.num_nodes != self.num_nodes:
            return f"nnodes is {hello.num_nodes} there and {self.num_nodes} at node 0"
        if hello.fingerprint != self._fingerprint:
            return f"the model there, {hello.model_path}, is another one than that of node 0"
        return ""

    def _keep(self, node: _Node, address: str, host: str) -> None:
        """Listen to a node until it is gone.

        Args:
            address: of the node.
            host: address of this host, by which the node has reached it.
        """
        rank = node.hello.node_rank
        try:
            if self._takes(node, host):
                log.info("node %d is here, from %s", rank, address)
                self._listen_to(node)
        finally:
            with self._changed:
                is_known = self._nodes.get(rank) is node
                if is_known:
                    del self._nodes[rank]
            if is_known and not self._is_closed:
                log.warning("node %d is gone", rank)
            for process in list(node.processes.values()):
                process.ended(f"is lost: node {rank} is gone")
            node.channel.close()

    def _takes(self, node: _Node, host: str) -> bool:
        """Whether this node has its rank from now on. One that has the rank already keeps it, unless it is this one."""
        rank = node.hello.node_rank
        with self._changed:
            before = self._nodes.get(rank)
            is_taken = before is not None and before.hello.instance != node.hello.instance
            why = "the engine is stopping" if self._is_closed else f"there is a node {rank} already" if is_taken else ""
            with contextlib.suppress(OSError):
                node.channel.send((why, False))
            if why:
                return False
            self._nodes[rank], self._host = node, host
            self._changed.notify_all()
        if before is not None:  # it came again before its end was noticed
            before.channel.close()
        return True

    def _listen_to(self, node: _Node) -> None:
        with contextlib.suppress(EOFError):
            while True:
                what, token, value = node.channel.receive()
                if what == "started":
                    node.processes[token].arrived("pid", value)
                else:
                    how = f"{value}; its output is in the log of node {node.hello.node_rank}"
                    node.processes.pop(token).ended(how)


def _plain(address: str) -> str:
    """An address of IPv4 as such."""
    return address.removeprefix("::ffff:")


def _listen(port: int) -> socket.socket:
    is_dual = socket.has_dualstack_ipv6()
    return socket.create_server(("", port), family=socket.AF_INET6 if is_dual else socket.AF_INET, dualstack_ipv6=is_dual)
