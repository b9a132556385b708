"""Media files made in code, valid and invalid, and tiny multimodal checkpoints for them."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image

from support.builders.multimodal import build_checkpoint
from support.run_dir import run_dir


@functools.cache
def checkpoint(family: str) -> Path:
    """A tiny checkpoint of the family, written once per test run."""
    return build_checkpoint(family, run_dir(family))


def image(
    width: int = 40, height: int = 30, kind: str = "PNG", mode: str = "RGB", orientation: int | None = None, **save: Any
) -> bytes:
    """An image of one colour. `orientation` is the EXIF orientation."""
    picture, file = Image.new(mode, (width, height), 128), io.BytesIO()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        save["exif"] = exif
    picture.save(file, kind, **save)
    return file.getvalue()


def animation(width: int = 40, height: int = 30) -> bytes:
    """A GIF of three frames."""
    frames, file = [Image.new("P", (width, height), shade) for shade in (1, 2, 3)], io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def huge_png(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of a few bytes whose header declares billions of pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def archive() -> bytes:
    """A zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("a.txt", "no picture")
    return file.getvalue()


def sound(num_samples: int = 8000, rate: int = 16_000, kind: str = "WAV", channels: int = 1) -> bytes:
    """A quiet noise."""
    samples, file = np.random.default_rng(0).normal(0, 0.1, (num_samples, channels)), io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


def lying_wav(num_samples: int, claimed_bytes: int) -> bytes:
    """A WAV file whose header declares another size of the data."""
    content = bytearray(sound(num_samples))
    at = content.index(b"data") + 4
    content[at : at + 4] = struct.pack("<I", claimed_bytes)
    return bytes(content)


def video(num_frames: int = 20, width: int = 64, height: int = 48, fps: int = 10, kind: str = "mp4") -> bytes:
    """A video whose frames get brighter."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), number * 5 % 256, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def talk(*bursts_s: float, pause_s: float = 1.0, rate: int = 16_000, kind: str = "WAV") -> bytes:
    """Bursts of noise of these lengths, in seconds, with pauses of near silence between them."""
    draw = np.random.default_rng(0)
    parts = [draw.normal(0, 1e-4, int(pause_s * rate)) for _ in bursts_s for _ in range(2)][:-1]
    parts[::2] = [draw.normal(0, 0.1, int(length_s * rate)) for length_s in bursts_s]
    file = io.BytesIO()
    soundfile.write(file, np.concatenate(parts), rate, format=kind)
    return file.getvalue()
