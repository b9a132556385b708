"""FFmpeg opens the file that it is handed, and nothing that the file refers to."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import pytest
from support.builders.media import a_container_sound_file, a_video_file
from triptych_common.media.container import open_container

PIXELS = 1_000_000


@contextmanager
def counted_connections() -> Iterator[tuple[int, list[int]]]:
    """A port, and one entry per connection that was made to it."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(1)
                    connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], connections
        # A connection that was made is in the queue before this one.
        with socket.create_connection(server.getsockname()):
            pass
        for _ in range(200):
            if connections:
                break
            time.sleep(0.01)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    connections.pop()


def test_what_holds_its_own_data_is_opened() -> None:
    with open_container(a_video_file(), PIXELS) as container:
        assert sum(1 for _ in container.decode(video=0)) == 31
    with open_container(a_container_sound_file("matroska", "aac"), PIXELS) as container:
        assert container.streams.audio


def test_a_list_of_files_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.mp4").write_bytes(a_video_file())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(av.FFmpegError):
        open_container(b"ffconcat version 1.0\nfile secret.mp4\n", PIXELS)


def test_no_address_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_list(port: int) -> bytes:
        return f"ffconcat version 1.0\nfile http://127.0.0.1:{port}/a.ts\n".encode()

    with counted_connections() as (port, unguarded), pytest.raises(av.FFmpegError):
        av.open(BytesIO(a_list(port)), container_options={"safe": "0"})
    assert unguarded, "FFmpeg by itself follows the list"
    # As if the list's own check of names were off: what refuses it must be ours.
    original = av.open

    def trusting(*args: Any, container_options: dict[str, str], **more: Any) -> Any:
        return original(*args, container_options=container_options | {"safe": "0"}, **more)

    monkeypatch.setattr(av, "open", trusting)
    with counted_connections() as (port, guarded), pytest.raises((av.FFmpegError, PermissionError)):
        open_container(a_list(port), PIXELS)
    assert not guarded


def test_a_larger_frame_than_allowed_is_not_decoded() -> None:
    large = a_video_file(num_frames=1, width=1200, height=1000)
    with open_container(large, 100_000) as container, pytest.raises(av.FFmpegError):
        next(container.decode(video=0))
    for allowed in (1_200_000, 1 << 40):
        with open_container(large, allowed) as container:
            next(container.decode(video=0))
