"""JSON objects as google.protobuf.Struct."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st
from triptych_common.rpc.structs import from_struct, to_struct

numbers = st.integers(-(2**52), 2**52) | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer())
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=4))
def test_objects_come_back_as_they_were(value: dict) -> None:
    back = from_struct(to_struct(value))
    assert back == value
    assert repr(sorted(back)) == repr(sorted(value))


def test_whole_numbers_are_integers() -> None:
    back = from_struct(to_struct({"a": 3, "b": 3.5, "c": [2.0], "d": True}))
    assert repr(sorted(back.items())) == "[('a', 3), ('b', 3.5), ('c', [2]), ('d', True)]"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_json_has_not_is_refused(number: float) -> None:
    struct = struct_pb2.Struct()
    struct.fields["x"].number_value = number
    with pytest.raises(ValueError, match="JSON"):
        from_struct(struct)
