"""Names that clients gave to their media."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from triptych.v1 import common_pb2
from triptych_common.rpc.principal import Principal
from triptych_frontend.media.aliases import KnownMedia, UuidAliases
from triptych_frontend.media.item import AudioHeader, ImageHeader

IMAGE = common_pb2.MODALITY_IMAGE


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.binary(max_size=1)), max_size=30), st.integers(1, 4))
def test_aliases_know_the_last_content_of_each_name(steps: list[tuple[str, str, bytes]], limit: int) -> None:
    aliases, expected = UuidAliases(limit), {}
    for tenant, uuid, content in steps:
        aliases.learn(tenant, uuid, KnownMedia(IMAGE, content, ImageHeader(1, 1)))
        expected[tenant, uuid] = content
        assert len(aliases) <= limit
    for (tenant, uuid), content in expected.items():
        known = aliases.find(tenant, uuid)
        assert known is None or known.content_hash == content
    assert aliases.find("c", "x") is None


def test_a_corrected_alias_is_counted() -> None:
    aliases = UuidAliases(4)
    for content in (b"1", b"1", b"2"):
        aliases.learn("", "cat", KnownMedia(common_pb2.MODALITY_AUDIO, content, AudioHeader(1, 1)))
    assert aliases.num_corrections == 1


def test_a_tenant_with_many_names_loses_its_own() -> None:
    aliases, quiet = UuidAliases(10), Principal("quiet").scoped_salt("")
    aliases.learn(quiet, "cat", KnownMedia(IMAGE, b"cat", ImageHeader(1, 1)))
    for number in range(100):
        # A salt of the client's own does not make it another tenant.
        salt = Principal("flood").scoped_salt(f"salt {number}")
        aliases.learn(salt, "dog", KnownMedia(IMAGE, b"dog", ImageHeader(1, 1)))
    assert aliases.find(quiet, "cat") is not None
    assert aliases.find(Principal("flood").scoped_salt("salt 99"), "dog") is not None
    assert aliases.find(Principal("flood").scoped_salt("salt 50"), "dog") is None
    assert len(aliases) == 10
