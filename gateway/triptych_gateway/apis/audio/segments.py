"""Segments: what is said from one time to another. They come from pieces of sound, or from marks that a model writes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from triptych_gateway.apis.audio.cutting import Piece

#: A mark of time as Whisper writes it, in seconds of the sound that it was given.
_MARK = re.compile(r"<\|(\d+\.\d+)\|>")
#: Scripts whose words have no spaces between them, by the start of their characters' names.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "FULLWIDTH", "IDEOGRAPHIC", "THAI", "LAO", "KHMER", "MYANMAR")


@dataclass(frozen=True)
class Segment:
    """A part of the speech. Times are in seconds of the file."""

    start_s: float
    end_s: float
    text: str


def segments_of(piece: Piece, text: str) -> list[Segment]:
    """The segments of what a model wrote for a piece. Silence has none.

    A model that marks times gives its own. Other models give none: the piece is one segment.
    """
    marked = list(_marked(piece, text)) if _MARK.search(text) else [Segment(piece.start_s, piece.end_s, text)]
    return [Segment(one.start_s, one.end_s, " ".join(one.text.split())) for one in marked if one.text.strip()]


def _marked(piece: Piece, text: str) -> Iterator[Segment]:
    """Between two marks is a segment, and what follows the last mark ends with the piece.

    A model may write any number in a mark: none is behind the piece's end.
    """
    parts = _MARK.split(text)
    texts, marks = parts[::2], [min(piece.end_s, piece.offset_s + float(mark)) for mark in parts[1::2]]
    for start_s, end_s, said in zip([piece.start_s, *marks], [*marks, piece.end_s], texts, strict=True):
        yield Segment(start_s, max(start_s, end_s), said)


def separator(before: str, after: str) -> str:
    """What stands between two parts of a transcript: a space, unless there is one, or the script has none."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    names = (unicodedata.name(before[-1], ""), unicodedata.name(after[0], ""))
    return "" if any(name.startswith(_WITHOUT_SPACES) for name in names) else " "


def joined(texts: list[str]) -> str:
    """One text of several."""
    whole = ""
    for text in texts:
        part = text.strip() if len(texts) > 1 else text
        whole += separator(whole, part) + part
    return whole
