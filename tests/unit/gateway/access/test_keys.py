"""Keys: their text, their file, and how they are looked up."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.keys import PAST, KeyStore, secret_of
from triptych.errors import StartupError
from triptych_gateway.access import key_ring
from triptych_gateway.access.key_ring import Key, KeyRing
from triptych_gateway.access.keys import KeyFileError, id_in, new_key, parse_key_file
from triptych_gateway.redaction import redacted


def test_a_new_key_has_a_public_id_and_256_random_bits() -> None:
    made = [new_key() for _ in range(200)]
    assert len({text for _, text, _ in made}) == len({key_id for key_id, _, _ in made}) == 200
    for key_id, text, hashed in made:
        assert text.startswith(f"sk-triptych-{key_id}-")
        assert id_in(text.encode()) == key_id
        assert len(secret_of(text)) == 43
        assert hashed == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@given(text=st.binary(max_size=80) | st.from_regex(rb"sk-triptych-[a-z0-9]{7,13}-[A-Za-z0-9_-]{42,44}\n?"))
def test_any_text_may_be_looked_up(text: bytes) -> None:
    assert KeyRing("the only key", None).find(text) == "wrong"
    found = id_in(text)
    assert found is None or 8 <= len(found) <= 12


def test_keys_in_a_text_are_redacted() -> None:
    key_id, text, _ = new_key()
    assert redacted(f"/v1/{text}?x={text}") == f"/v1/sk-triptych-{key_id}-...?x=sk-triptych-{key_id}-..."
    assert redacted("/v1/models") == "/v1/models"


ENTRY = {"id": "abcdefgh", "hash": "sha256:" + "0" * 64, "created": PAST}


def parse(*entries: Any, **more: Any) -> None:
    parse_key_file(orjson.dumps({"version": 1, "keys": entries, **more}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hash": "sha256:xyz"}, "key abcdefgh: hash: String should match pattern"),
        ({"hash": None}, "key abcdefgh: hash: Input should be a valid string"),
        ({"id": "short"}, "key number 1: id: String should match pattern"),
        ({"tenant": ""}, "key abcdefgh: tenant: String should match pattern"),
        (
            {"tenant": "cert:somebody"},
            "key abcdefgh: tenant: must not begin with 'cert:': such tenants belong to client certificates",
        ),
        ({"models": []}, "key abcdefgh: models: List should have at least 1 item"),
        ({"models": "all"}, "key abcdefgh: models: Input should be a valid array"),
        ({"requests_per_minute": 0}, "key abcdefgh: requests_per_minute: Input should be greater than or equal to 1"),
        ({"tokens_per_minute": "10"}, "key abcdefgh: tokens_per_minute: Input should be a valid integer"),
        ({"max_concurrent_requests": 0.5}, "key abcdefgh: max_concurrent_requests: Input should be a valid integer"),
        ({"expires": "2030-01-01T00:00:00"}, "key abcdefgh: expires: Input should have timezone info"),
        ({"revoked": True}, "key abcdefgh: revoked: Input should be a valid datetime"),
        ({"request_per_minute": 5}, "key abcdefgh: request_per_minute: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_entry_is_named_by_its_key_and_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        parse({**ENTRY, **change})
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "Input should be an object"),
        (b'{"keys": []}', "version: Field required"),
        (b'{"version": 1}', "keys: Field required"),
        (b'{"version": 1, "keys": [5]}', "key number 1: Input should be an object"),
        (b"\xff", "Invalid JSON"),
    ],
)
def test_a_wrong_file_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(KeyFileError, match=said):
        parse_key_file(content)


def test_two_keys_of_an_id_are_refused() -> None:
    with pytest.raises(KeyFileError, match="two keys have the id abcdefgh"):
        parse(ENTRY, {**ENTRY, "name": "other"})


def test_a_key_in_the_wrong_place_is_not_quoted() -> None:
    _, text, _ = new_key()
    for field in (*ENTRY, "tenant", "models", text):
        with pytest.raises(KeyFileError) as caught:
            parse({**ENTRY, field: text})
        assert field == text or secret_of(text) not in str(caught.value)


def test_many_errors_are_not_all_told() -> None:
    with pytest.raises(KeyFileError, match="; and 95 more") as caught:
        parse(*({"id": "abcdefgh"} for _ in range(50)))
    assert len(str(caught.value)) < 1000


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json")


def test_who_a_key_is(keys: KeyStore) -> None:
    limited = keys.add("limited", tenant="acme", models=["a"], requests_per_minute=1, tokens_per_minute=2, priority=3)
    plain = keys.add("plain")
    ring = KeyRing("the only key", keys.path)
    found = ring.find(limited.encode())
    assert isinstance(found, Key)
    assert (found.id, found.principal.tenant, found.models) == (keys.id("limited"), "acme", {"a"})
    assert (found.requests_per_minute, found.tokens_per_minute, found.priority, found.is_operator) == (1, 2, 3, False)
    default, other = ring.find(b"the only key"), ring.find(plain.encode())
    assert isinstance(default, Key)
    assert isinstance(other, Key)
    assert (default.id, default.principal.tenant, default.priority, default.is_operator) == ("default", "", None, True)
    assert other.principal.tenant == keys.id("plain"), "a tenant of its own"
    for text in (limited, keys.texts["plain"]):
        assert secret_of(text) not in repr(vars(ring))
        assert hashlib.sha256(text.encode()).digest().hex() not in repr(vars(ring))


def test_a_key_of_the_setting_may_have_the_form_of_the_others(keys: KeyStore) -> None:
    _, text, _ = new_key()
    found = KeyRing(text, keys.path).find(text.encode())
    assert isinstance(found, Key)
    assert found.id == "default"


def test_a_key_ends(keys: KeyStore) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    texts = {
        "expired": keys.add("expired", expires=PAST),
        "revoked": keys.add("revoked", revoked=PAST, expires=PAST),
        "valid": keys.add("valid", expires=soon.isoformat()),
    }
    ring = KeyRing(None, keys.path)
    assert ring.find(texts["expired"].encode()) == "expired"
    assert ring.find(texts["revoked"].encode()) == "revoked"
    assert isinstance(ring.find(texts["valid"].encode()), Key)


@pytest.mark.parametrize("default", [None, "the only key"])
def test_every_look_up_hashes_once_and_compares_twice(keys: KeyStore, default: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its time does not tell whether an id is known, or how much of a secret is right."""
    good = keys.add("key")
    revoked = keys.add("revoked", revoked=PAST)
    ring = KeyRing(default, keys.path)
    hashed: list[bytes] = []
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    def hash_once(text: bytes) -> bytes:
        hashed.append(text)
        return hashlib.sha256(text).digest()

    monkeypatch.setattr(key_ring, "hmac", type("", (), {"compare_digest": staticmethod(compare)}))
    monkeypatch.setattr(key_ring, "key_hash", hash_once)
    texts = [good, revoked, good[:-1] + "x", good.replace(keys.id("key"), "0" * 10), "the only key", "", "x" * 60_000]
    for text in texts:
        ring.find(text.encode())
    assert hashed == [text.encode() for text in texts]
    assert compared == [(32, 32)] * (2 * len(texts))


def test_a_file_that_is_no_file_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"cannot use the API keys in .*; see --api-keys-file"):
        KeyRing(None, tmp_path)
