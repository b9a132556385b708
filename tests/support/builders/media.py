"""Small media files in real formats, made in code."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image


def a_picture(width: int = 90, height: int = 50, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Noise on a gradient, so that a resize or a crop changes the values."""
    rng = np.random.default_rng(seed)
    gradient = np.linspace(0, 128, width * height * 3).reshape(height, width, 3)
    pixels = (gradient + rng.integers(0, 127, gradient.shape)).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def an_image_file(kind: str = "PNG", image: Image.Image | None = None, **options: Any) -> bytes:
    file = BytesIO()
    (image or a_picture()).save(file, kind, **options)
    return file.getvalue()


def a_png_that_claims(width: int, height: int) -> bytes:
    """A PNG whose header declares more pixels than its few bytes contain."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def samples(seconds: float = 1.0, rate: int = 16_000, channels: int = 1, seed: int = 0) -> np.ndarray:
    """[num_samples, channels] float32: a tone with noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    tone = 0.3 * np.sin(2 * np.pi * 440 * time)[:, None] + 0.05 * rng.standard_normal((len(time), channels))
    return tone.astype(np.float32)


def a_sound_file(kind: str = "WAV", rate: int = 16_000, data: np.ndarray | None = None, **options: Any) -> bytes:
    file = BytesIO()
    soundfile.write(file, samples(rate=rate) if data is None else data, rate, format=kind, **options)
    return file.getvalue()


def a_video_file(num_frames: int = 31, width: int = 96, height: int = 64, fps: int = 10, seed: int = 0) -> bytes:
    """An MP4 without audio."""
    file = BytesIO()
    rng = np.random.default_rng(seed)
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(num_frames):
            pixels = rng.integers(0, 127, (height, width, 3), dtype=np.uint8) + np.uint8(index * 4 % 128)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def a_container_sound_file(kind: str = "mp4", codec: str = "aac", rate: int = 16_000, seconds: float = 1.0) -> bytes:
    """Audio in a container that libsndfile cannot read."""
    file = BytesIO()
    mono = samples(seconds, rate)[:, 0]
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(mono[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size or 1024)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode())
    return file.getvalue()
