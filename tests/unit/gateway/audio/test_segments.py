"""Segments from pieces and from marks of time, and the formats that have them."""

from __future__ import annotations

import math

import pytest
from triptych.v1 import generation_pb2
from triptych_gateway.apis.audio.cutting import Piece
from triptych_gateway.apis.audio.formats import Header, TimedText, srt, verbose_json, vtt
from triptych_gateway.apis.audio.segments import Segment, joined, segments_of

PIECE = Piece(61.5, 67.25, 61.0, b"")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  One\n two. ", [(61.5, 67.25, "One two.")]),
        (" \n", []),
        ("", []),
        ("<|0.50|> One.<|2.00|><|2.00|> Two.<|5.00|>", [(61.5, 63.0, "One."), (63.0, 66.0, "Two.")]),
        ("<|0.50|> One.<|2.00|><|3.00|> Two.", [(61.5, 63.0, "One."), (64.0, 67.25, "Two.")]),
        ("Before<|2.00|>", [(61.5, 63.0, "Before")]),
        ("<|9.00|>Late", [(67.25, 67.25, "Late")]),
        (f"<|{'9' * 400}.0|>Never", [(67.25, 67.25, "Never")]),
        ("<|5.00|> Two.<|2.00|> Back.", [(66.0, 66.0, "Two."), (63.0, 67.25, "Back.")]),
        ("a <|word|> of <|10|>", [(61.5, 67.25, "a <|word|> of <|10|>")]),
    ],
)
def test_segments(text: str, expected: list[tuple[float, float, str]]) -> None:
    assert [(one.start_s, one.end_s, one.text) for one in segments_of(PIECE, text)] == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["One.", "Two."], "One. Two."),
        ([" One. ", "\nTwo."], "One. Two."),
        (["早上好。", "再见。"], "早上好。再见。"),
        (["สวัสดี", "ลาก่อน"], "สวัสดีลาก่อน"),
        (["안녕.", "잘 가."], "안녕. 잘 가."),
        (["One.", "", "Two."], "One. Two."),
        ([" kept as it is "], " kept as it is "),
        ([], ""),
    ],
)
def test_joined(texts: list[str], expected: str) -> None:
    assert joined(texts) == expected


PARTS = [
    TimedText([Segment(0.0, 1.5, "A & <b>")], [generation_pb2.TokenLogprob(logprob=-0.5)] * 2, [7, 8]),
    TimedText([], [], []),
    TimedText([Segment(3599.9996, 3725.0004, "Two"), Segment(3726, 3727.1, "Three")], [], [9]),
]


def test_srt() -> None:
    assert srt(PARTS) == (
        "1\n00:00:00,000 --> 00:00:01,500\nA & <b>\n\n"
        "2\n01:00:00,000 --> 01:02:05,000\nTwo\n\n"
        "3\n01:02:06,000 --> 01:02:07,100\nThree\n"
    )


def test_vtt() -> None:
    assert vtt(PARTS).startswith(
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nA &amp; &lt;b&gt;\n\n01:00:00.000 --> 01:02:05.000\nTwo\n"
    )
    assert vtt([]) == "WEBVTT\n"


def test_verbose_json() -> None:
    answer = verbose_json(Header("transcribe", "fr", 3730.2, 0.0), PARTS)
    assert (answer["text"], answer["duration"], answer["language"]) == ("A & <b> Two Three", 3730.2, "fr")
    assert answer["usage"] == {"type": "duration", "seconds": 3731}
    first, second, third = answer["segments"]
    assert [one["id"] for one in answer["segments"]] == [0, 1, 2]
    assert (first["tokens"], second["tokens"]) == ([7, 8], [])
    assert (first["avg_logprob"], third["avg_logprob"], first["no_speech_prob"]) == (-0.5, None, None)
    assert second["seek"] == third["seek"] == 359999
    assert math.isclose(first["compression_ratio"], 7 / 15)
