"""One model on two hosts: their streams survive a node that is killed, and a network that is cut.

The second host is another process, and where this is allowed to make one (root, with `ip`) in a network of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest
from support.stack import Stack, running_stack
from triptych_common.settings import DEFAULT_MODEL

from .test_worker_process import BODIES, streamed

pytestmark = [pytest.mark.model, pytest.mark.timeout(600), pytest.mark.long]
_FLAGS = ["--engine.dtype", "float32", "--engine.batch-invariant", "--tensor-parallel-size", "2"]
_NAME, _ADDRESSES = "triptych-node", ("10.213.7.1", "10.213.7.2")
_IP = shutil.which("ip")


@dataclass
class Network:
    """Between the two hosts."""

    address: str
    #: What a command of the second host begins with.
    prefix: tuple[str, ...] = ()

    def cut(self, *, on: bool) -> None:
        """Pull the cable, or plug it in again."""
        ip("link", "set", f"{_NAME}0", "down" if on else "up")


def ip(*arguments: str) -> None:
    assert _IP is not None
    subprocess.run([_IP, *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def second_network() -> Iterator[Network]:
    """A namespace with a cable to this one. Skips the test where none can be made."""
    if _IP is None or os.geteuid() != 0:
        pytest.skip("a network of its own needs root and `ip`")
    try:
        ip("netns", "add", _NAME)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network of its own: {error.stderr.decode().strip()}")
    try:
        ip("link", "add", f"{_NAME}0", "type", "veth", "peer", "name", "eth0", "netns", _NAME)
        ip("addr", "add", f"{_ADDRESSES[0]}/24", "dev", f"{_NAME}0")
        ip("link", "set", f"{_NAME}0", "up")
        for rest in (
            ("addr", "add", f"{_ADDRESSES[1]}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", _NAME, *rest)
        yield Network(_ADDRESSES[0], (_IP, "netns", "exec", _NAME))
    finally:
        ip("netns", "del", _NAME)  # its end of the cable goes with it, and so does ours


@pytest.fixture(scope="module", params=["loopback", "namespace"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with contextlib.nullcontext(Network("127.0.0.1")) if request.param == "loopback" else second_network() as network:
        yield network


@pytest.fixture(scope="module")
def flags(network: Network, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of both nodes."""
    key_file = tmp_path_factory.mktemp("key") / "key"
    key_file.write_text("a secret that only the nodes of this test have\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return ["--nnodes", "2", "--master-addr", network.address, "--master-port", str(port), "--node-key-file", str(key_file)]


@contextlib.contextmanager
def second_node(network: Network, flags: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [*network.prefix, sys.executable, "-m", "triptych_engine", "--model", DEFAULT_MODEL, *flags, "--node-rank", "1"]
    with subprocess.Popen(command) as node:
        try:
            yield node
        finally:
            everything = (
                [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)] if node.poll() is None else []
            )
            node.terminate()
            assert not psutil.wait_procs(everything, 30)[1]


@pytest.fixture(scope="module")
def stack(network: Network, flags: list[str]) -> Iterator[Stack]:
    with (
        second_node(network, flags),
        running_stack(*_FLAGS, *(f"--engine.{one[2:]}" if one[:2] == "--" else one for one in flags)) as it,
    ):
        yield it


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, list[float], str]]:
    """What two ranks on one host answer."""
    with running_stack(*_FLAGS) as stack:
        return [streamed(stack, body) for body in BODIES]


def answers(stack: Stack, expected: list[tuple[str, list[float], str]]) -> None:
    for body, wanted in zip(BODIES, expected, strict=True):
        text, logprobs, reason = streamed(stack, body)
        assert (text, reason) == (wanted[0], wanted[2])
        assert logprobs == pytest.approx(wanted[1], abs=1e-5)


def node_of(flags: list[str]) -> psutil.Process:
    """The second node's process."""
    found = (process for process in psutil.process_iter() if process.cmdline()[-2:] == ["--node-rank", "1"])
    return next(process for process in found if flags[-1] in process.cmdline() and "triptych_engine" in process.cmdline()[2:3])


def test_two_hosts_answer_as_one(stack: Stack, expected: list[tuple[str, list[float], str]]) -> None:
    answers(stack, expected)


def test_streams_go_on_when_the_network_is_back(
    network: Network, stack: Stack, expected: list[tuple[str, list[float], str]]
) -> None:
    if not network.prefix:
        pytest.skip("the loopback device is not cut")
    begun = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        stream = threads.submit(streamed, stack, BODIES[0], begun)
        assert begun.wait(60)
        network.cut(on=True)
        try:
            stack.serving.wait_until_unready(stack.url, timeout_s=40)
            assert "node 1 is gone" in stack.serving.log
            time.sleep(2)
        finally:
            network.cut(on=False)
        assert stream.result(timeout=200) == expected[0]
    stack.serving.wait_until_ready(stack.url)
    stack.wait_until_empty()


def test_streams_go_on_with_the_node_that_comes_next(
    network: Network, flags: list[str], stack: Stack, expected: list[tuple[str, list[float], str]]
) -> None:
    begun, node = threading.Event(), node_of(flags)
    workers = node.children()
    with ThreadPoolExecutor(1) as threads:
        stream = threads.submit(streamed, stack, BODIES[1], begun)
        assert begun.wait(60)
        node.kill()
        assert not psutil.wait_procs(workers, 20)[1], "its workers end without it"
        with second_node(network, flags):
            assert stream.result(timeout=200) == expected[1]
            stack.serving.wait_until_ready(stack.url)
            answers(stack, expected)
            stack.wait_until_empty()
