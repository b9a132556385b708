"""Bodies that are meant to keep the gateway busy: they are refused, and other clients do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.gateway_process import GatewayProcess, gateway_process

MIB = 1 << 20
#: No poll of /live may take longer, in seconds.
MAX_POLL_S = 0.1
#: CPU time in which an attack must be refused, in seconds. On an idle machine it is the time.
MAX_REFUSAL_S = 1.0
#: Programs that share the processor's caches and cores make CPU time itself longer. What the gateway does is the same each time.
ATTEMPTS = 3


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with gateway_process() as process:
        yield process


def filled(unit: bytes, head: bytes = b"{", tail: bytes = b'"x":1}', num_bytes: int = 32 * MIB) -> bytes:
    """The unit as often as it fits."""
    return head + unit * ((num_bytes - len(head) - len(tail)) // len(unit)) + tail


def many_keys(head: bytes, tail: bytes) -> bytes:
    """An object with a million names."""
    return head + b"{" + b",".join(b'"k%d":1' % number for number in range(1_000_000)) + b"}" + tail


_CHAT = b'{"model":"m","messages":[{"role":"user","content":"x"}]'
BODIES: dict[str, Callable[[], bytes]] = {
    "data keys": lambda: filled(b'"data":1,'),
    "data marks": lambda: filled(b'"data"'),
    "8 MiB of data keys": lambda: filled(b'"data":1,', num_bytes=8 * MIB),
    "data URLs": lambda: filled(b'";base64,"'),
    "sources": lambda: filled(b'"source":{"data":"AAAAAAAAAA"},', b'{"prompt":[', b"1]}"),
    "deep lists": lambda: filled(b"["),
    "deep objects": lambda: filled(b'{"a":'),
    "a million names": lambda: many_keys(b"", b""),
    "a million template variables": lambda: many_keys(_CHAT + b',"chat_template_kwargs":', b"}"),
    "a million biases": lambda: many_keys(_CHAT + b',"logit_bias":', b"}"),
    "messages": lambda: filled(b'{"role":"user","content":"x"},', b'{"messages":[', b"1]}", 8 * MIB),
    "empty lists": lambda: filled(b"[],", b'{"x":[', b"1]}", 3 * MIB // 2),
    "a number of 30 MiB": lambda: b'{"temperature":' + b"9" * (30 * MIB) + b"}",
    "a number of 100 MB": lambda: b'{"temperature":' + b"9" * 100_000_000 + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_heavy_body_is_refused_and_nobody_else_waits(gateway: GatewayProcess, name: str) -> None:
    body = BODIES[name]()
    for _ in range(ATTEMPTS):
        with gateway.polled() as polls:
            start_s = gateway.cpu_s()
            status, content = gateway.post("/v1/chat/completions", body)
            used_s = gateway.cpu_s() - start_s
        assert status in (400, 413), content[:300]
        if max(polls) < MAX_POLL_S and used_s < MAX_REFUSAL_S:
            return
    pytest.fail(f"the slowest poll took {max(polls):.3f} s, and the refusal {used_s:.3f} s of CPU time")
