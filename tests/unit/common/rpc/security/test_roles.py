"""What a certificate says of its owner."""

from __future__ import annotations

from triptych_common.rpc.security.roles import Peer, Role, current_peer, trusted_tenant


def test_only_dns_names_give_roles() -> None:
    """gRPC puts URIs and e-mail addresses into the same property as DNS names, and into others too."""
    names = [b"client.triptych.internal", b"gateway.triptych.internal"]
    peer = Peer.of({"x509_subject_alternative_name": names, "peer_dns": names[:1], "peer_uri": names[1:]})
    assert peer.roles == {Role.CLIENT}
    assert Peer.of({"x509_subject_alternative_name": names[1:], "peer_email": names[1:]}).roles == frozenset()


def test_a_certificate_without_a_common_name_is_a_tenant_by_its_names() -> None:
    token = current_peer.set(Peer.of({"peer_dns": [b"client.triptych.internal", b"alice.example"], "x509_common_name": [b""]}))
    try:
        assert trusted_tenant(None) == "cert:client.triptych.internal,alice.example"
    finally:
        current_peer.reset(token)
