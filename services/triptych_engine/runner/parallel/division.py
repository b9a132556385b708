"""Who gets what when a model is divided among ranks: inner dimensions in equal parts, attention by whole heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from triptych.errors import UnsupportedModelError

#: Rows and columns are divided in multiples of the first of these by which no rank gets much more than its part: kernels compute
#: in tiles.
_UNITS = (64, 32, 16, 8, 4, 2, 1)
_BALANCED = 1.05


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a tensor that a rank has: ranges of one dimension, one after the other.

    Attributes:
        dim: counted from the end, -1 for the last one. So it is the same for one expert's weight and for that of all experts.
        size: of this dimension in the whole tensor.
        ranges: first index and end of each, in the order in which the rank has them.
        parts: equal parts of the dimension that are cut alike, and may be stored one by one.
    """

    dim: int
    size: int
    ranges: tuple[tuple[int, int], ...]
    parts: int = 1

    @property
    def length(self) -> int:
        """Size of the dimension in the rank's part."""
        return sum(end - begin for begin, end in self.ranges)

    def times(self, unit: int) -> Cut:
        """The cut of a dimension that has `unit` entries for each one of this."""
        return replace(self, size=self.size * unit, ranges=tuple((begin * unit, end * unit) for begin, end in self.ranges))

    def along(self, dim: int) -> Cut:
        """The same cut of another dimension."""
        return replace(self, dim=dim)

    def repeated(self, parts: int) -> Cut:
        """The cut of a dimension in which so many of these follow each other, such as gate and up in one weight."""
        ranges = [(part * self.size + a, part * self.size + b) for part in range(parts) for a, b in self.ranges]
        return Cut(self.dim, parts * self.size, tuple(ranges), parts)


def spread(count: int, size: int, *, first_more: bool = False) -> list[tuple[int, int]]:
    """`count` things among `size` ranks, in order: first index and end of each rank's. No two differ by more than one; the last
    ranks get more than the first ones, or with `first_more` the first ones."""
    up = size - 1 if first_more else 0
    ends = [(rank * count + up) // size for rank in range(size + 1)]
    return list(pairwise(ends))


def cut_evenly(count: int, rank: int, size: int, what: str, least: int = 1) -> Cut:
    """A rank's part of a dimension of which any entries may be at any rank.

    Args:
        what: has the dimension, for the error.
        least: of which each part must be a multiple.

    Raises:
        UnsupportedModelError: there are too few entries.
    """
    units = [unit for unit in dict.fromkeys((*_UNITS, least)) if unit % least == 0 and count % unit == 0]
    balanced = [unit for unit in units if -(-count // unit // size) * unit * size <= count * _BALANCED]
    unit = next(iter(balanced or units[-1:]), count)
    if count // unit < size:
        multiples = "" if least == 1 else f" in multiples of {least}"
        raise UnsupportedModelError(f"{what}: {count} entries cannot be divided among {size} ranks{multiples}")
    return Cut(-1, count // unit, (spread(count // unit, size)[rank],)).times(unit)


@dataclass(frozen=True, slots=True)
class HeadShare:
    """The heads of one rank.

    Attributes:
        query: of a dimension with one entry per query head.
        kv: of a dimension with one entry per key and value head. A head that several ranks need is at each of them. If groups were
            of different lengths, heads are repeated until all are of one length.
    """

    query: Cut
    kv: Cut

    @property
    def group(self) -> int:
        """Query heads for each key and value head of the rank."""
        return self.query.length // self.kv.length


def head_shares(num_q_heads: int, num_kv_heads: int, size: int) -> list[HeadShare]:
    """The heads of each rank.

    Query heads go to ranks in groups that have one key and value head, or in equal parts of groups: whichever leaves the rank that
    has most the least. A key and value head is at each rank that needs it.

    Raises:
        UnsupportedModelError: there are more ranks than query heads.
    """
    if num_q_heads < size:
        raise UnsupportedModelError(f"{num_q_heads} attention heads cannot be divided among {size} ranks")
    group = num_q_heads // num_kv_heads
    units = [unit for unit in range(group, 0, -1) if group % unit == 0 and num_q_heads // unit >= size]
    return min((_shares_of(unit, num_q_heads, num_kv_heads, size) for unit in units), key=_most_heads)


def _most_heads(shares: Sequence[HeadShare]) -> int:
    return max(share.query.length + share.kv.length for share in shares)


def _shares_of(unit: int, num_q_heads: int, num_kv_heads: int, size: int) -> list[HeadShare]:
    """The shares if so many query heads stay together."""
    # Vocabulary and inner dimensions leave the larger part to the last ranks.
    spans = spread(num_q_heads // unit, size, first_more=True)
    group = num_q_heads // num_kv_heads
    return [_head_share((begin * unit, end * unit), num_q_heads, num_kv_heads, group) for begin, end in spans]


def _head_share(span: tuple[int, int], num_q_heads: int, num_kv_heads: int, group: int) -> HeadShare:
    needed = [(head, len(list(some))) for head, some in groupby(query // group for query in range(*span))]
    own_group = math.gcd(*(count for _, count in needed))
    heads = [head for head, count in needed for _ in range(count // own_group)]
    return HeadShare(Cut(-1, num_q_heads, (span,)), Cut(-1, num_kv_heads, _ranges(heads)))


def _ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Numbers, in order, as ranges: those that follow each other are one."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)
