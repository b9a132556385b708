"""Where a process stands among those that compute a model together. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place among those that compute a model together.

    Attributes:
        rank: from 0.
        size: number of ranks.
        rendezvous: path of a file where the ranks find each other. The first one makes it.
        shared_memory: file descriptor, which is inherited, of memory that ranks of one host can share; -1 for none.
    """

    rank: int = 0
    size: int = 1
    rendezvous: str = ""
    shared_memory: int = -1


#: Of a process that computes a model by itself.
ALONE = Place()
