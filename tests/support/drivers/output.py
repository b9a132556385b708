"""Runs a stage of the output chain on a text that is split into pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from triptych_frontend.conversation.events import Event, Reasoning, Text, ToolArguments
from triptych_frontend.output.chain import Stage


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    """The text, split at these positions. Positions beyond its end count as its end."""
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def run_stage(stage: Stage, pieces: Sequence[str]) -> list[Event]:
    """Feed each piece as the text of one token, then finish. Returns all events."""
    fed = [event for number, piece in enumerate(pieces, start=1) for event in stage.feed(Text(piece, number))]
    return [*fed, *stage.finish()]


def merged(events: Iterable[Event]) -> list[object]:
    """The events, with adjacent pieces of one kind joined, and texts as strings.

    The result must not depend on how the text was split.
    """
    result: list[object] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Text):
            if isinstance(last, str):
                result[-1] = last + event.text
            elif event.text:
                result.append(event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, ToolArguments) and isinstance(last, ToolArguments) and last.index == event.index:
            result[-1] = ToolArguments(last.index, last.text + event.text)
        else:
            result.append(event)
    return result
