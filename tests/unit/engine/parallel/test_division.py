"""Who gets what of a model's dimensions: everything is at one rank, except for heads that several need."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triptych.errors import UnsupportedModelError
from triptych_engine.runner.parallel.division import Cut, cut_evenly, head_shares, spread
from triptych_engine.runner.parallel.loading import StoredPart

SIZES = st.integers(1, 10)


def numbers(cut: Cut) -> list[int]:
    return [number for begin, end in cut.ranges for number in range(begin, end)]


@given(count=st.integers(0, 40), size=SIZES, first_more=st.booleans())
def test_things_are_spread_in_order(count: int, size: int, first_more: bool) -> None:
    spans = spread(count, size, first_more=first_more)
    assert [number for span in spans for number in range(*span)] == list(range(count))
    lengths = [end - begin for begin, end in spans]
    assert max(lengths) - min(lengths) <= 1
    assert (lengths[0] if first_more else lengths[-1]) == max(lengths)


@given(units=st.integers(1, 400), unit=st.sampled_from([1, 8, 48, 64]), size=st.integers(2, 5), least=st.sampled_from([1, 8]))
def test_an_even_cut_leaves_nothing_out(units: int, unit: int, size: int, least: int) -> None:
    count = units * unit
    if count % least or count // least < size:
        with pytest.raises(UnsupportedModelError, match=f"weight: {count} entries cannot be divided among {size} ranks"):
            cut_evenly(count, 0, size, "weight", least)
        return
    cuts = [cut_evenly(count, rank, size, "weight", least) for rank in range(size)]
    assert [number for cut in cuts for number in numbers(cut)] == list(range(count))
    assert all(cut.length and cut.length % least == 0 for cut in cuts)
    if count >= 64 * 20 * size and count % 64 == 0:
        assert all(cut.length % 64 == 0 for cut in cuts), "tiles stay whole"
    if least == 1:
        assert max(cut.length for cut in cuts) <= max(count * 1.05 / size, count // size + 1)


@given(group=st.integers(1, 8), num_kv_heads=st.integers(1, 9), size=SIZES)
def test_each_query_head_finds_its_key_head(group: int, num_kv_heads: int, size: int) -> None:
    num_q_heads = group * num_kv_heads
    if num_q_heads < size:
        with pytest.raises(UnsupportedModelError, match=f"{num_q_heads} attention heads cannot be divided among {size} ranks"):
            head_shares(num_q_heads, num_kv_heads, size)
        return
    shares = head_shares(num_q_heads, num_kv_heads, size)
    assert [head for share in shares for head in numbers(share.query)] == list(range(num_q_heads))
    for share in shares:
        queries, keys = numbers(share.query), numbers(share.kv)
        assert len(queries) == len(keys) * share.group
        assert [keys[place // share.group] for place in range(len(queries))] == [head // group for head in queries]
    if num_kv_heads % size == 0:
        assert [head for share in shares for head in numbers(share.kv)] == list(range(num_kv_heads)), "none is there twice"
    if size % num_kv_heads == 0 and num_q_heads % size == 0:
        assert all(share.kv.length == 1 for share in shares), "one head for each rank, replicated"


class Stored:
    """As safetensors' slices are."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, index: object) -> torch.Tensor:
        return self._tensor[index]


@given(inner=st.integers(2, 12), size=SIZES, dim=st.sampled_from([-1, -2]))
def test_gate_and_up_are_cut_alike_in_one_weight_and_apart(inner: int, size: int, dim: int) -> None:
    gate, up = torch.rand(2, inner, inner), torch.rand(2, inner, inner)
    for rank in range(min(size, inner)):
        cut = cut_evenly(inner, rank, min(size, inner), "w").repeated(2).along(dim)
        together = StoredPart(Stored(torch.cat([gate, up], dim)), cut)[...]
        apart = [StoredPart(Stored(one), cut)[...] for one in (gate, up)]
        assert torch.equal(together, torch.cat(apart, dim))
