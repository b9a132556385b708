"""Transcripts with times: SubRip (srt), WebVTT, and OpenAI's verbose JSON."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triptych.v1 import generation_pb2

from triptych_gateway.apis.audio.segments import Segment, joined
from triptych_gateway.wire.logprobs import finite_logprob


@dataclass(frozen=True)
class TimedText:
    """What a model wrote for a piece of the sound.

    Attributes:
        segments: in order.
        logprobs, token_ids: of all tokens.
    """

    segments: list[Segment]
    logprobs: list[generation_pb2.TokenLogprob]
    token_ids: list[int]


@dataclass(frozen=True)
class Header:
    """What verbose JSON says of the whole.

    Attributes:
        task: transcribe or translate.
        duration_s: length of the file, in seconds.
    """

    task: str
    language: str
    duration_s: float
    temperature: float


def srt(parts: Sequence[TimedText]) -> str:
    """Subtitles in the format SubRip."""
    cues = enumerate((one for part in parts for one in part.segments), 1)
    return "\n".join(f"{number}\n{_time(cue.start_s, ',')} --> {_time(cue.end_s, ',')}\n{cue.text}\n" for number, cue in cues)


def vtt(parts: Sequence[TimedText]) -> str:
    """Subtitles in the format WebVTT."""
    cues = [
        f"{_time(cue.start_s, '.')} --> {_time(cue.end_s, '.')}\n{_escaped(cue.text)}\n" for part in parts for cue in part.segments
    ]
    return "\n".join(["WEBVTT\n", *cues])


def verbose_json(header: Header, parts: Sequence[TimedText]) -> dict[str, Any]:
    """The answer in the format verbose_json."""
    segments: list[dict[str, Any]] = []
    for part in parts:
        segments += [_segment(len(segments) + number, one, part, header) for number, one in enumerate(part.segments)]
    return {
        "task": header.task,
        "language": header.language,
        "duration": round(header.duration_s, 3),
        "text": joined([one["text"] for one in segments]),
        "segments": segments,
        "usage": {"type": "duration", "seconds": math.ceil(header.duration_s)},
    }


def _segment(number: int, segment: Segment, part: TimedText, header: Header) -> dict[str, Any]:
    text = segment.text.encode()
    logprobs = [finite_logprob(one.logprob) for one in part.logprobs]
    return {
        "id": number,
        # Whisper counts the position of the sound that it was given in frames of 10 ms.
        "seek": int(part.segments[0].start_s * 100),
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text,
        # Where a model marks several segments, their tokens are not told apart.
        "tokens": part.token_ids if len(part.segments) == 1 else [],
        "temperature": header.temperature,
        "avg_logprob": sum(logprobs) / len(logprobs) if logprobs else None,
        "compression_ratio": len(text) / len(zlib.compress(text)),
        "no_speech_prob": None,
    }


def _time(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
