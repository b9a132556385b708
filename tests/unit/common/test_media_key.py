"""Media keys: equal only when everything that embeddings depend on is."""

from hypothesis import given
from hypothesis import strategies as st
from triptych.v1 import common_pb2
from triptych_common.media.key import canonical_options, media_key

PARTS = st.tuples(
    st.binary(max_size=4),
    st.sampled_from([common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO]),
    st.binary(max_size=4),
    st.text(max_size=3),
    st.text(max_size=3),
)


@given(PARTS, PARTS)
def test_keys_are_equal_exactly_when_all_parts_are(one: tuple, other: tuple) -> None:
    assert (media_key(*one) == media_key(*other)) == (one == other)
    assert len(media_key(*one)) == 32


def test_options_in_another_order_are_the_same_options() -> None:
    assert canonical_options({"b": [1, 2], "a": {"d": 1, "c": 2}}) == canonical_options({"a": {"c": 2, "d": 1}, "b": [1, 2]})
    assert canonical_options({}) == ""
