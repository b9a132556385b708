"""Leaves the oldest exchanges of a conversation out, so that it fits into the model's context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from triptych.v1 import common_pb2

from triptych_frontend.conversation.turns import ChatTurn


class Prompt(Protocol):
    """A rendered conversation."""

    @property
    def token_ids(self) -> Sequence[int]: ...


T = TypeVar("T", bound=Prompt)
#: Share of the context that is kept for the answer, where the request sets no max_tokens.
_ANSWER_SHARE = 8


def room_for_prompt(sampling: common_pb2.SamplingParams, max_model_len: int) -> int:
    """Most tokens of a prompt that leaves room for its answer."""
    answer = sampling.max_tokens if sampling.HasField("max_tokens") else max_model_len // _ANSWER_SHARE
    return max(max_model_len - max(answer, 1), 1)


async def shortened(
    whole: T, turns: Sequence[ChatTurn], room: int, render: Callable[[list[ChatTurn], list[bool]], Awaitable[T]]
) -> tuple[T, list[bool]]:
    """The prompt without as many of the oldest exchanges as it takes to have at most `room` tokens, and which media are left.

    The last exchange stays, whether it fits or not.

    Args:
        whole: the prompt of all turns.
        render: makes the prompt of some of the turns. Its second argument says which media of `turns` are left.
    """
    found = whole, [True] * sum(len(turn.media) for turn in turns)
    num_most = max(len(_starts(turns)) - 1, 0)
    low, high = 1, 0 if len(whole.token_ids) <= room else num_most
    while low <= high:
        number = (low + high) // 2
        kept, media = _without_oldest(turns, number)
        prompt = await render(kept, media)
        fits = len(prompt.token_ids) <= room
        if fits or number == num_most:
            found = prompt, media
        low, high = (low, number - 1) if fits else (number + 1, high)
    return found


def _without_oldest(turns: Sequence[ChatTurn], number: int) -> tuple[list[ChatTurn], list[bool]]:
    """The turns without the oldest `number` exchanges, and for each medium of `turns`, in order, whether it is left.

    Instructions stay, wherever they are. A call and its result belong to the same exchange, so no result loses its call.
    """
    starts = _starts(turns)
    first, end = (starts[0], starts[number]) if starts else (0, 0)
    kept, media = list[ChatTurn](), list[bool]()
    for index, turn in enumerate(turns):
        is_kept = not first <= index < end or turn.role in ("system", "developer")
        media += [is_kept] * len(turn.media)
        if is_kept:
            kept.append(turn)
    return kept, media


def _starts(turns: Sequence[ChatTurn]) -> list[int]:
    """Where exchanges begin. What the assistant says first is a part of the first one."""
    users = [index for index, turn in enumerate(turns) if turn.role == "user"]
    head = next((index for index, turn in enumerate(turns) if turn.role not in ("system", "developer")), len(turns))
    return [head, *users[1:]] if users else []
