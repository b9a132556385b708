"""Audio: from a raw file to one channel of float32 samples at the model's rate."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from math import gcd

import av
import numpy as np
import soundfile
from triptych_common.media.container import open_container
from triptych_common.media.limits import MAX_SAMPLING_RATE, MIN_SAMPLING_RATE, MediaLimits

from triptych_encoder.media.limits import DecodeClock, bad_media, check_size

_BLOCK_SAMPLES = 1 << 16


def decode_audio(data: bytes, rate: int, limits: MediaLimits) -> np.ndarray:
    """Samples, shape (num_samples,), float32: the mean of all channels, at `rate` samples per second.

    Reads block by block, so that a wrong length in the header costs no memory.

    Raises:
        InvalidRequestError: the file is not audio, has no samples, is damaged, or exceeds a limit.
    """
    check_size("audio", data, limits)
    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            source_rate = file.samplerate
            _check_header(source_rate, file.frames, limits)
            samples = _gather(_sound_blocks(file), source_rate, limits)
    except soundfile.LibsndfileError:
        source_rate, samples = _decode_container(data, limits)
    if len(samples) == 0:
        raise bad_media("audio", "has no samples", value=0)
    if not np.isfinite(samples).all():
        raise bad_media("audio", "has samples that are not numbers")
    return resample(samples, source_rate, rate)


def resample(samples: np.ndarray, source_rate: int, rate: int) -> np.ndarray:
    """Polyphase resampling; the result has ceil(num_samples * rate / source_rate) samples."""
    if source_rate == rate:
        return samples
    divisor = gcd(source_rate, rate)
    from scipy.signal import resample_poly  # half a second, which only encoders of audio need: see `warm_up`

    return resample_poly(samples, rate // divisor, source_rate // divisor).astype(np.float32)


def warm_up() -> None:
    """Make sure that no item waits for what is imported late."""
    resample(np.zeros(2, np.float32), 2, 1)


def _check_header(rate: int, num_samples: int, limits: MediaLimits) -> None:
    if not MIN_SAMPLING_RATE <= rate <= MAX_SAMPLING_RATE:
        what = f"has {rate} samples per second; {MIN_SAMPLING_RATE} to {MAX_SAMPLING_RATE} are taken"
        raise bad_media("audio", what, MAX_SAMPLING_RATE, rate)
    _check_length(rate, num_samples, limits)


def _check_length(rate: int, num_samples: int, limits: MediaLimits) -> None:
    if num_samples > limits.max_samples(rate):
        seconds, most = f"{num_samples / rate:.1f}", f"{limits.max_samples(rate) / rate:g}"
        what = f"is {seconds} s long or more; at most {most} s are taken at {rate} samples per second"
        raise bad_media("audio", what, most, seconds)


def _sound_blocks(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    while len(block := file.read(_BLOCK_SAMPLES, dtype="float32", always_2d=True)):
        yield block.mean(axis=1, dtype=np.float32)


def _gather(blocks: Iterator[np.ndarray], rate: int, limits: MediaLimits) -> np.ndarray:
    gathered, num_samples, clock = [], 0, DecodeClock("audio", limits)
    for block in blocks:
        clock.check()
        gathered.append(block)
        num_samples += len(block)
        _check_length(rate, num_samples, limits)
    return np.concatenate(gathered) if gathered else np.zeros(0, np.float32)


def _decode_container(data: bytes, limits: MediaLimits) -> tuple[int, np.ndarray]:
    """Rate and samples of a file that libsndfile cannot read: m4a, webm, the audio track of a video."""
    try:
        with open_container(data, limits.max_pixels) as container:
            if not container.streams.audio:
                raise bad_media("audio", "file has no sound in it")
            stream = container.streams.audio[0]
            rate = stream.codec_context.sample_rate
            declared = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
            _check_header(rate, int(declared * rate), limits)
            return rate, _gather(_container_blocks(container, rate), rate, limits)
    except (av.FFmpegError, EOFError, ValueError) as error:
        raise bad_media("audio", f"is of no known format, or damaged: {str(error).splitlines()[0]}") from error


def _container_blocks(container: av.container.InputContainer, rate: int) -> Iterator[np.ndarray]:
    resampler = av.AudioResampler(format="fltp", rate=rate)
    for frame in _with_flush(container.decode(audio=0)):
        for planar in resampler.resample(frame):
            yield planar.to_ndarray().mean(axis=0, dtype=np.float32)


def _with_flush(frames: Iterator[av.AudioFrame]) -> Iterator[av.AudioFrame | None]:
    yield from frames
    yield None
