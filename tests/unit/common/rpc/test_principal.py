"""Principals: no choice of a salt reaches into the caches of another."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from triptych_common.rpc.principal import ANONYMOUS, Principal

# Few characters, so that one part can look like the beginning of the other.
NAMES = st.text("0123:ab", max_size=6)


@given(NAMES, NAMES, NAMES, NAMES)
@example("a", "b", "", "1:ab")
def test_salts_are_equal_exactly_when_tenant_and_salt_are(tenant: str, salt: str, other_tenant: str, other_salt: str) -> None:
    one, other = Principal(tenant).scoped_salt(salt), Principal(other_tenant).scoped_salt(other_salt)
    assert (one == other) == ((tenant, salt) == (other_tenant, other_salt))


def test_without_tenant_and_salt_caches_are_shared() -> None:
    assert Principal() == ANONYMOUS
    assert ANONYMOUS.scoped_salt("") == ""
