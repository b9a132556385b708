"""Messages between processes of an engine."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest
from triptych_engine.executor.channel import Channel


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, sock = Channel.pair()
    theirs = Channel(sock)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 20_000_000])
def test_messages_of_any_size_arrive(ends: tuple[Channel, Channel], size: int):
    message = {"data": bytes(size), "rest": [1, "two"]}
    sender = threading.Thread(target=ends[0].send, args=(message,))
    sender.start()
    assert ends[1].receive(10) == message
    sender.join()


def test_messages_of_several_threads_stay_whole(ends: tuple[Channel, Channel]):
    def send(number: int) -> None:
        for _ in range(20):
            ends[0].send([number] * 50_000)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    received = [ends[1].receive() for _ in range(80)]
    assert sorted(message[0] for message in received) == sorted([*range(4)] * 20)
    assert all(len(message) == 50_000 and len(set(message)) == 1 for message in received)
    for thread in threads:
        thread.join()


def test_what_cannot_be_pickled_is_not_sent(ends: tuple[Channel, Channel]):
    with pytest.raises(Exception, match="pickle"):
        ends[0].send(lambda: None)
    ends[0].send("next")
    assert ends[1].receive(10) == "next"


def test_nothing_in_time_is_a_timeout(ends: tuple[Channel, Channel]):
    with pytest.raises(TimeoutError):
        ends[0].receive(0.01)


def test_a_timeout_is_of_one_message(ends: tuple[Channel, Channel]):
    ends[1].send("first")
    assert ends[0].receive(0.05) == "first"
    threading.Timer(0.3, ends[1].send, ("second",)).start()
    assert ends[0].receive() == "second"


def test_a_full_channel_is_a_timeout(ends: tuple[Channel, Channel]):
    with pytest.raises(TimeoutError):
        ends[0].send(bytes(50_000_000), 0.05)


def test_the_end_is_seen_at_the_other_end(ends: tuple[Channel, Channel]):
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(OSError, match=r"."):
        ends[1].send("anything")


def test_closing_wakes_who_receives(ends: tuple[Channel, Channel]):
    ended = threading.Event()

    def receive() -> None:
        with pytest.raises(EOFError):
            ends[0].receive()
        ended.set()

    threading.Thread(target=receive, daemon=True).start()
    ends[0].close()
    assert ended.wait(10)


def test_a_closed_channel_is_at_its_end(ends: tuple[Channel, Channel]):
    ends[0].close()
    with pytest.raises(EOFError):
        ends[0].receive()


def test_a_host_that_does_not_answer_any_more_is_gone(ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch):
    """The system's time was up, not the caller's."""

    class Gone:
        def settimeout(self, timeout_s: float | None) -> None: ...

        def recv_into(self, view: memoryview) -> int:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

        def sendall(self, data: bytes) -> None:
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    with pytest.raises(TimeoutError):
        ends[0].receive(0.01)
    monkeypatch.setattr(ends[1], "_socket", Gone())
    with pytest.raises(EOFError):
        ends[1].receive(10)
    with pytest.raises(ConnectionAbortedError):
        ends[1].send("lost", 10)
    monkeypatch.undo()
