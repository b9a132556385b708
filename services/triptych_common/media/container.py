"""Opens sounds and videos with FFmpeg: the file that was handed over, and nothing that it refers to.

Some of FFmpeg's formats are lists of other files (HLS, DASH, concat, SDP): whoever opened one for a client would fetch addresses
and read files of this machine on the client's word. So the formats are named that hold their own data, and no other file is opened.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, NoReturn

import av

#: Names of FFmpeg's demuxers. A new one belongs here only when it reads nothing but its own file.
FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpegts,mpeg,mpegvideo,h264,hevc,m4v,ivf,yuv4mpegpipe,gif,apng,"
    "ogg,mp3,aac,flac,wav,w64,aiff,amr,caf,au,ac3,eac3,tta,ape,wv"
)
#: FFmpeg counts the pixels of its buffers, whose edges are rounded up.
_MARGIN_PIXELS = 1 << 16
#: What its option takes.
_LARGEST = 2**31 - 1


def open_container(content: bytes, max_pixels: int) -> Any:
    """The file as PyAV's input container; to be closed.

    Args:
        max_pixels: of a frame; one of more than about twice as many is not decoded, whatever the header said.

    Raises:
        av.FFmpegError: it is of none of the formats, or damaged.
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
