"""Vectors of embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triptych.v1 import common_pb2


def rows(packed: common_pb2.Tensor, counts: Iterable[int]) -> Iterator[memoryview[float]]:
    """The numbers of each input, from a float32 tensor [number of vectors, dimensions] and each input's number of vectors."""
    values, size, end = memoryview(packed.inline).cast("f"), packed.shape[1], 0
    for count in counts:
        start, end = end, end + count * size
        yield values[start:end]
