"""FFmpeg opens the file that it is handed, and nothing that the file refers to."""

from __future__ import annotations

import socket
from io import BytesIO
from pathlib import Path

import av
import psutil
import pytest
from support.builders.media import a_container_sound_file, a_video_file
from triptych_common.media.container import open_container

PIXELS = 1_000_000


def a_session_description(port: int) -> bytes:
    return f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 32\n".encode()


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


def a_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1]) & ~1  # RTP has even ports


def listens_on(port: int) -> bool:
    return any(connection.laddr.port == port for connection in psutil.Process().net_connections("udp"))


def test_no_socket_is_opened() -> None:
    port = a_free_port()
    description = a_session_description(port)
    with av.open(BytesIO(description), timeout=0.2):
        assert listens_on(port), "FFmpeg would open one"
    with pytest.raises(av.FFmpegError):
        open_container(description, PIXELS)
    assert not listens_on(port)


def test_a_larger_frame_than_allowed_is_not_decoded() -> None:
    large = a_video_file(num_frames=1, width=1200, height=1000)
    with open_container(large, 100_000) as container, pytest.raises(av.FFmpegError):
        next(container.decode(video=0))
    for allowed in (1_200_000, 1 << 40):
        with open_container(large, allowed) as container:
            next(container.decode(video=0))
