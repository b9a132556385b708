"""Finds where speech can be cut: in its pauses, else where it is quietest.

The place of least energy is how vLLM cuts long files (vllm/entrypoints/openai/speech_to_text). Pauses are looked for first, because
a pause is mostly the end of a phrase, which makes a subtitle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Length of a frame, whose loudness is one value, in seconds.
FRAME_S = 0.02
#: Shortest pause, in frames: 0.3 s.
_MIN_PAUSE = 15
#: Frames that are as loud as this part of the way from the quiet ones to the loud ones are sound. In decibels.
_SOUND_PART = 0.25
#: What is quieter than the loud frames by so many decibels is silence. With less than the second, there is no telling pauses apart.
_MOST_RANGE_DB, _LEAST_RANGE_DB = 50.0, 10.0
#: Frames over which loudness is averaged to find the quietest place: 0.1 s, as vLLM.
_QUIET_FRAMES = 5
#: Frames whose loudness is computed at once.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Span:
    """A part of the sound, in frames.

    Attributes:
        start, end: of the part.
        first, last: where its sound begins, and ends. Before and behind it is silence.
    """

    start: int
    end: int
    first: int
    last: int


def loudness(samples: np.ndarray, rate: int) -> np.ndarray:
    """Loudness of each frame in decibels, 0 for the loudest square wave.

    Args:
        samples: shape (num_samples,), int16.

    Returns:
        shape (num_frames,), float32. The rest of the samples, less than a frame, has none.
    """
    length = int(rate * FRAME_S)
    frames = samples[: len(samples) // length * length].reshape(-1, length)
    means = [np.square(frames[at : at + _BLOCK], dtype=np.float32).mean(axis=1) for at in range(0, len(frames), _BLOCK)]
    power = np.concatenate(means) if means else np.zeros(0, np.float32)
    return 10 * np.log10(power / 2.0**30 + 1e-12)


def sounding(levels: np.ndarray) -> np.ndarray:
    """Whether each frame has sound, shape (num_frames,), bool. True throughout where loud and quiet are much the same."""
    if not len(levels):
        return np.zeros(0, bool)
    loud = float(np.quantile(levels, 0.95))
    quiet = max(float(np.quantile(levels, 0.02)), loud - _MOST_RANGE_DB)
    if loud - quiet < _LEAST_RANGE_DB:
        return np.ones(len(levels), bool)
    return levels > quiet + _SOUND_PART * (loud - quiet)


def spans(levels: np.ndarray, shortest: int, longest: int, at_pauses: bool) -> list[Span]:
    """The parts that have sound, in order. One part if none has.

    Args:
        levels: from `loudness`.
        shortest, longest: frames of a part. The last one may be shorter.
        at_pauses: cut in pauses, also where a part need not be cut yet.
    """
    has_sound, pauses = sounding(levels), []
    # Where sound begins and ends.
    edges = np.flatnonzero(np.diff(has_sound.astype(np.int8), prepend=1, append=1))
    for start, end in edges.reshape(-1, 2).tolist():
        if end - start >= _MIN_PAUSE:
            pauses.append((start, end))
    parts, start = list[Span](), 0
    while start < len(levels):
        end = _cut(levels, pauses, start, shortest, longest, at_pauses)
        inside = np.flatnonzero(has_sound[start:end])
        if len(inside):
            parts.append(Span(start, end, start + int(inside[0]), start + int(inside[-1]) + 1))
        start = end
    return parts or [Span(0, len(levels), 0, len(levels))]


def _cut(levels: np.ndarray, pauses: list[tuple[int, int]], start: int, shortest: int, longest: int, at_pauses: bool) -> int:
    """Where the part that begins at `start` ends."""
    left = len(levels) - start
    if left <= longest and not at_pauses:
        return len(levels)
    middles = [(end - max(begin, start), (max(begin, start) + end) // 2) for begin, end in pauses if end > start]
    fitting = [(length, middle) for length, middle in middles if shortest <= middle - start <= longest]
    if fitting:
        return max(fitting)[1]
    if left <= longest:
        return len(levels)
    # The later half of where a cut may be: a longer part has more context.
    low = start + (shortest + longest) // 2
    window = np.convolve(levels[low - _QUIET_FRAMES // 2 : start + longest], np.ones(_QUIET_FRAMES), "valid")
    return low + int(np.argmin(window))
