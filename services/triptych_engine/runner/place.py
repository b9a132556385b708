"""Where a process stands among those that compute a model together. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place among those that compute a model together.

    Attributes:
        rank: from 0.
        size: number of ranks.
        rendezvous: path of a file where the ranks find each other, which the first one makes; of several hosts HOST:PORT, where the
            first one listens.
        shared_memory: file descriptor, which is inherited, of memory that ranks of one host can share; -1 for none.
        num_nodes: hosts, of which each has the same number of ranks, in their order.
        model_path: directory of the model on this host, if it is not the engine's.
    """

    rank: int = 0
    size: int = 1
    rendezvous: str = ""
    shared_memory: int = -1
    num_nodes: int = 1
    model_path: Path | None = None

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""
        return self.size // self.num_nodes

    @property
    def local_rank(self) -> int:
        """The rank among those of this host."""
        return self.rank % self.local_size


#: Of a process that computes a model by itself.
ALONE = Place()
