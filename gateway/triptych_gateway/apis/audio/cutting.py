"""Cuts sound into pieces that a model takes one by one, in a process of its own, which decodes it."""

from __future__ import annotations

import importlib.util
import io
import struct
import sys
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from triptych_gateway.file_process import Limits, TooLargeError, UnreadableError, read_in_process, serve_file

#: Longest time for a file, in seconds, and most memory, in bytes.
_LIMITS = Limits(60, 2 << 30)
#: Samples per second of the pieces. All models here take speech at this rate.
_RATE = 16_000
_BYTES_PER_S = 2 * _RATE
_MAX_AUDIO_S = 7200
#: Silence around the sound of a piece that the model gets too, in seconds.
_MARGIN_S = 0.2
#: Largest frame of a video, whose sound may be cut, too. Its pictures are not decoded.
_MAX_PIXELS = 1 << 24
#: Least bytes of a second of speech in any format: AMR has 594.
_LEAST_BYTES_PER_S = 512
#: What is read of a WAV file to find its length. Its parts may be as short as eight bytes, and are read on the event loop.
_HEADER_BYTES = 4096
#: What Python runs in the process, before the numbers of the rule.
_COMMAND = ("-m", "triptych_gateway.apis.audio.cutting")


@dataclass(frozen=True)
class CutRule:
    """How long pieces are, in seconds.

    Attributes:
        shortest_s, longest_s: the last piece may be shorter.
        at_pauses: cut in the pauses of speech, also where a piece need not be cut yet.
    """

    shortest_s: float
    longest_s: float
    at_pauses: bool


#: For a text: as long as most models take at once, which is also what vLLM cuts.
FOR_TEXT = CutRule(20.0, 30.0, at_pauses=False)
#: For times: a piece is a subtitle.
FOR_TIMES = CutRule(3.0, 10.0, at_pauses=True)


@dataclass(frozen=True)
class Piece:
    """A part of the sound. Times are in seconds of the whole.

    Attributes:
        start_s, end_s: where its sound begins, and ends.
        offset_s: where the samples of `wav` begin: a little earlier.
        wav: a WAV file.
    """

    start_s: float
    end_s: float
    offset_s: float
    wav: bytes = field(repr=False)


@dataclass(frozen=True)
class Speech:
    """A file that was decoded.

    Attributes:
        duration_s: its length in seconds.
        pieces: empty if it need not be cut.
    """

    duration_s: float
    pieces: list[Piece]

    @property
    def num_bytes(self) -> int:
        """Size of all pieces."""
        return sum(len(piece.wav) for piece in self.pieces)


def can_cut() -> bool:
    """Whether this gateway has what decodes sound."""
    return all(importlib.util.find_spec(name) is not None for name in ("av", "numpy"))


def is_short(content: bytes, longest_s: float) -> bool:
    """Whether a file is surely no longer than this: few bytes, or a WAV file. To start the process takes 0.2 s of the processor."""
    if len(content) <= longest_s * _LEAST_BYTES_PER_S:
        return True
    try:
        with wave.open(io.BytesIO(content[:_HEADER_BYTES])) as file:
            # One that was written as it was made may say 0.
            return 0 < file.getnframes() <= longest_s * file.getframerate()
    except (wave.Error, EOFError, ValueError, RuntimeError):
        return False


async def cut_speech(content: bytes, rule: CutRule) -> Speech:
    """Decode a file and cut it. Raises UnreadableError."""
    numbers = map(str, (rule.shortest_s, rule.longest_s, int(rule.at_pauses)))
    output = await read_in_process((*_COMMAND, *numbers), content, _LIMITS)
    head_end = output.index(b"\n")
    found, pieces = orjson.loads(output[:head_end]), []
    view = memoryview(output)[head_end + 1 :]
    for start_s, end_s, offset_s, start, end in found["pieces"]:
        pieces.append(Piece(start_s, end_s, offset_s, _wav(view[2 * start : 2 * end])))
    return Speech(found["duration_s"], pieces)


def _wav(samples: memoryview) -> bytes:
    size = len(samples)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _RATE, _BYTES_PER_S, 2, 16)
    return b"".join((struct.pack("<4sI4s", b"RIFF", 36 + size, b"WAVE"), form, struct.pack("<4sI", b"data", size), samples))


def _cut(content: bytes, rule: CutRule) -> bytes:
    """The process's output: a line of JSON with length and pieces, and the samples if there are pieces."""
    import numpy as np

    from triptych_gateway.apis.audio.pauses import FRAME_S, loudness, spans

    delay_s, samples = _decoded(content)
    duration_s = len(samples) / _BYTES_PER_S
    if duration_s <= rule.longest_s and not rule.at_pauses:
        return orjson.dumps({"duration_s": duration_s, "pieces": []}) + b"\n"
    levels = loudness(np.frombuffer(samples, np.int16), _RATE)
    pieces = []
    for span in spans(levels, int(rule.shortest_s / FRAME_S), int(rule.longest_s / FRAME_S), rule.at_pauses):
        offset_s = max(span.start * FRAME_S, span.first * FRAME_S - _MARGIN_S)
        until_s = min(span.end * FRAME_S, span.last * FRAME_S + _MARGIN_S)
        if span.end == len(levels):  # with the rest of the samples, less than a frame, unless the piece were too long with it
            until_s = min(duration_s, offset_s + rule.longest_s)
        times = (round(delay_s + time_s, 3) for time_s in (span.first * FRAME_S, min(duration_s, span.last * FRAME_S), offset_s))
        pieces.append((*times, round(offset_s * _RATE), round(until_s * _RATE)))
    return orjson.dumps({"duration_s": duration_s, "pieces": pieces}) + b"\n" + samples


def _decoded(content: bytes) -> tuple[float, bytearray]:
    """How much later than the file its sound begins, in seconds, and its samples, int16 in the machine's order."""
    import av
    from triptych_common.media.container import open_container

    samples = bytearray()
    try:
        with open_container(content, _MAX_PIXELS) as container:
            if not container.streams.audio:
                raise UnreadableError("it has no sound in it")
            stream = container.streams.audio[0]
            begin_s = float((stream.start_time or 0) * stream.time_base) if stream.time_base else 0.0
            delay_s = max(0.0, begin_s - (container.start_time or 0) / av.time_base)
            resampler = av.AudioResampler(format="s16", layout="mono", rate=_RATE)
            for frame in _with_flush(container.decode(audio=0)):
                for block in resampler.resample(frame):
                    samples += block.to_ndarray().tobytes()
                if len(samples) > _MAX_AUDIO_S * _BYTES_PER_S:
                    raise TooLargeError(f"it is longer than {_MAX_AUDIO_S} s")
    except (av.FFmpegError, EOFError, ValueError) as error:
        raise UnreadableError(f"it is no sound of a known format, or damaged: {str(error).splitlines()[0]}") from error
    if not samples:
        raise UnreadableError("it has no samples")
    return delay_s, samples


def _with_flush(frames: Iterator[object]) -> Iterator[object]:
    yield from frames
    yield None


def main() -> int:
    """Read standard input, write its pieces. Returns the exit code."""
    shortest_s, longest_s, at_pauses = map(float, sys.argv[1:])
    rule = CutRule(shortest_s, longest_s, at_pauses=bool(at_pauses))
    return serve_file(lambda content: _cut(content, rule), _LIMITS)


if __name__ == "__main__":
    sys.exit(main())
