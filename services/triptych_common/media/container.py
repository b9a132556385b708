"""Opens audio and video files with FFmpeg, without access to any other file.

Some of FFmpeg's formats are lists of other files (HLS, DASH, concat, SDP). If a service opened such a file from a client, the
client could make it fetch addresses and read local files. So only formats that contain their own data are allowed, and FFmpeg can
open no other file.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, NoReturn

import av

#: Names of FFmpeg's demuxers. Add a format only if its demuxer reads nothing but its own file.
FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpegts,mpeg,mpegvideo,h264,hevc,m4v,ivf,yuv4mpegpipe,gif,apng,"
    "ogg,mp3,aac,flac,wav,w64,aiff,amr,caf,au,ac3,eac3,tta,ape,wv"
)
#: FFmpeg compares the limit with the pixels of its buffers, whose edges are rounded up.
_MARGIN_PIXELS = 1 << 16
#: Largest value of FFmpeg's max_pixels option.
_LARGEST = 2**31 - 1


def open_container(content: bytes, max_pixels: int) -> Any:
    """The file as PyAV's input container. The caller must close it.

    Args:
        max_pixels: most pixels of a frame. Frames with more than about twice as many are not decoded, whatever the header says.

    Raises:
        av.FFmpegError: the file has none of the formats, or is damaged.
    """
    container = av.open(
        BytesIO(content),
        container_options={"format_whitelist": FORMATS, "protocol_whitelist": "none"},
        io_open=_refuse,
        metadata_errors="replace",
    )
    for stream in container.streams.video:
        if stream.codec_context is not None:
            stream.codec_context.options = {"max_pixels": str(min(2 * max_pixels + _MARGIN_PIXELS, _LARGEST))}
    return container


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise PermissionError("a media file may not name other files")
