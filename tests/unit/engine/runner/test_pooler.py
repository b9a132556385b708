"""Pooling over chunks equals pooling at once, for each mode."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from triptych_common.model.pooling import PoolingMode, PoolingModel
from triptych_engine.runner.pooling.heads import ClassificationHead, EmbeddingHead
from triptych_engine.runner.pooling.pooler import PooledBatch, Pooler
from triptych_engine.scheduling.request import PoolingParams

_SIZE = 6
_PLAIN = PoolingParams()


def a_pooler(*modes: PoolingMode, normalize: bool = False) -> Pooler:
    return Pooler(PoolingModel("embed", False, _SIZE * len(modes), modes), EmbeddingHead([], normalize))


def a_batch(chunks: list[tuple[str, int, int, bool]], params: PoolingParams = _PLAIN) -> PooledBatch:
    """Sequences as (id, position of the first token, number of tokens, whether they are the last)."""
    lengths = [length for _, _, length, _ in chunks]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.array([position for _, position, _, _ in chunks])
    is_last = np.array([last for *_, last in chunks])
    return PooledBatch([name for name, *_ in chunks], [params] * len(chunks), starts, positions, is_last)


def expected(mode: PoolingMode, hidden: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(hidden) + 1)[:, None]
    return {
        "cls": hidden[0],
        "lasttoken": hidden[-1],
        "max": hidden.amax(0),
        "mean": hidden.mean(0),
        "mean_sqrt_len_tokens": hidden.sum(0) / len(hidden) ** 0.5,
        "weightedmean": (hidden * weights).sum(0) / weights.sum(),
    }[mode]


@pytest.mark.parametrize("mode", get_args(PoolingMode))
def test_chunks_equal_the_whole(mode: PoolingMode) -> None:
    torch.manual_seed(0)
    a, b, pooler = torch.randn(9, _SIZE), torch.randn(4, _SIZE), a_pooler(mode)
    assert pooler.pool(a[:3], a_batch([("a", 0, 3, False)])) == {}
    second = pooler.pool(torch.cat([b, a[3:5]]), a_batch([("b", 0, 4, True), ("a", 3, 2, False)]))
    third = pooler.pool(a[5:], a_batch([("a", 5, 4, True)]))
    torch.testing.assert_close(second["b"], expected(mode, b))
    torch.testing.assert_close(third["a"], expected(mode, a))


def test_a_dropped_request_starts_again() -> None:
    hidden, pooler = torch.randn(4, _SIZE), a_pooler("mean", "max")
    pooler.pool(hidden[:2] + 100, a_batch([("a", 0, 2, False)]))
    pooler.drop("a")
    whole = pooler.pool(hidden, a_batch([("a", 0, 4, True)]))["a"]
    torch.testing.assert_close(whole, torch.cat([hidden.mean(0), hidden.amax(0)]))


def test_each_request_has_its_own_parameters() -> None:
    hidden, pooler = torch.randn(6, _SIZE), a_pooler("mean", normalize=True)
    batch = a_batch([("plain", 0, 2, True), ("raw", 0, 2, True), ("short", 0, 2, True)])
    params = [_PLAIN, PoolingParams(normalize=False), PoolingParams(dimensions=2)]
    pooled = pooler.pool(hidden, PooledBatch(batch.request_ids, params, batch.starts, batch.positions, batch.is_last))
    means = hidden.view(3, 2, _SIZE).mean(1)
    torch.testing.assert_close(pooled["plain"], torch.nn.functional.normalize(means[0], dim=0))
    torch.testing.assert_close(pooled["raw"], means[1])
    torch.testing.assert_close(pooled["short"], torch.nn.functional.normalize(means[2, :2], dim=0))


def test_tokens_over_chunks() -> None:
    hidden, pooler, params = torch.randn(5, _SIZE), a_pooler("mean"), PoolingParams(per_token=True)
    assert pooler.pool(hidden[:2], a_batch([("a", 0, 2, False)], params)) == {}
    torch.testing.assert_close(pooler.pool(hidden[2:], a_batch([("a", 2, 3, True)], params))["a"], hidden)


def test_activations() -> None:
    logits = torch.tensor([[1.0, -2.0]])
    for activation, expect in (("none", logits), ("sigmoid", logits.sigmoid()), ("softmax", logits.softmax(-1))):
        head = ClassificationHead(lambda vectors: vectors, activation)  # type: ignore[arg-type]
        torch.testing.assert_close(head.finish(logits, _PLAIN), expect)
        torch.testing.assert_close(head.finish(logits, PoolingParams(activation=False)), logits)
