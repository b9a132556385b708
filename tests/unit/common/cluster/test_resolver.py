"""Resolvers report whole sets, at first and after each change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.waiting import until
from triptych.errors import StartupError
from triptych_common.cluster import resolver as resolver_module
from triptych_common.cluster.resolution import resolver_of
from triptych_common.cluster.resolver import DnsResolver, FileResolver, JoinedResolver, Resolver, StaticResolver


@asynccontextmanager
async def watched(resolver: Resolver) -> AsyncIterator[list[tuple[str, ...]]]:
    """The sets that a resolver reported so far."""
    reported: list[tuple[str, ...]] = []
    task = asyncio.create_task(resolver.watch(reported.append))
    try:
        yield reported
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Names:
    """A name server of one name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | OSError = addresses
        self.num_lookups = 0

    async def lookup(self, host: str) -> Sequence[str]:
        assert host == "encoders"
        self.num_lookups += 1
        if isinstance(self.addresses, OSError):
            raise self.addresses
        return self.addresses


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "DNS_RETRY_S", 0.001)


async def test_static_addresses_are_reported_once_and_stay() -> None:
    async with watched(StaticResolver(["a:1", "b:2", "a:1"])) as reported:
        await until(lambda: bool(reported))
        await asyncio.sleep(0)
        assert reported == [("a:1", "b:2")]


async def test_a_name_stands_for_all_its_addresses_and_is_followed() -> None:
    names = Names("10.0.0.2", "10.0.0.1", "fd00::1")
    async with watched(DnsResolver("encoders", 50052, 0.001, names.lookup)) as reported:
        await until(lambda: bool(reported))
        names.addresses = ("10.0.0.3",)
        await until(lambda: len(reported) == 2)
    assert reported == [("10.0.0.1:50052", "10.0.0.2:50052", "[fd00::1]:50052"), ("10.0.0.3:50052",)]


async def test_a_name_server_that_is_away_says_nothing_about_the_services() -> None:
    names = Names("10.0.0.1")
    async with watched(DnsResolver("encoders", 1, 0.001, names.lookup)) as reported:
        await until(lambda: bool(reported))
        names.addresses = OSError("no answer")
        before = names.num_lookups
        await until(lambda: names.num_lookups > before + 3)
        names.addresses = ("10.0.0.1",)
        before = names.num_lookups
        await until(lambda: names.num_lookups > before + 3)
    assert reported == [("10.0.0.1:1",)]


async def test_a_hint_brings_the_next_lookup_forward() -> None:
    names = Names("10.0.0.1")
    resolver = DnsResolver("encoders", 1, 3600, names.lookup)
    async with watched(resolver) as reported:
        await until(lambda: bool(reported))
        names.addresses = ("10.0.0.9",)

        def moved() -> bool:
            resolver.resolve_now()
            return len(reported) == 2

        await until(moved)
    assert reported[-1] == ("10.0.0.9:1",)


async def test_the_addresses_in_a_file_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "addresses"
    path.write_text("# our encoders\n\n10.0.0.1:50052\n  encoders:1  # the old ones\n[fd00::1]:2\n10.0.0.1:50052\n")
    async with watched(FileResolver(path, 0.001)) as reported:
        await until(lambda: bool(reported))
        path.write_text("10.0.0.3:50052")
        await until(lambda: reported[-1] == ("10.0.0.3:50052",))
        path.write_text("# none\n")
        await until(lambda: reported[-1] == ())
    assert reported[0] == ("10.0.0.1:50052", "encoders:1", "[fd00::1]:2")


async def test_a_change_of_comments_alone_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents: list[bytes] = [b"a:1", b"a:1 # new", b"# new\na:1", b"b:1"]
    monkeypatch.setattr(resolver_module, "_read_file", lambda path: contents.pop(0) if len(contents) > 1 else contents[0])
    async with watched(FileResolver(tmp_path, 0.001)) as reported:
        await until(lambda: len(reported) == 2)
    assert reported == [("a:1",), ("b:1",)]


async def test_bad_lines_of_a_file_are_logged_once_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "addresses"
    path.write_bytes(b"\xef\xbb\xbfa:1\nencoders\na:0\nb 2:3\nhttp://c:4\ndns:d:5\n\xff\xfe\nz:9\r\n")
    async with watched(FileResolver(path, 0.001)) as reported:
        await until(lambda: bool(reported))
        await asyncio.sleep(0.05)
    assert reported == [("a:1", "z:9")]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.split(": ")[1] for message in warnings] == [f"line {number} is skipped" for number in range(2, 8)]
    assert warnings[0] == f"{path}: line 2 is skipped: 'encoders' is not host:port"


async def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "addresses"
    async with watched(FileResolver(path, 0.001)) as reported:
        await until(lambda: "cannot be read: No such file" in caplog.text)
        assert reported == []
        path.write_text("a:1")
        await until(lambda: bool(reported))
        caplog.clear()
        path.unlink()
        await until(lambda: "cannot be read" in caplog.text)
        (tmp_path / "new").write_text("b:2")
        (tmp_path / "new").rename(path)
        await until(lambda: len(reported) == 2)
    assert reported == [("a:1",), ("b:2",)]
    assert caplog.text.count("cannot be read") == 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "large"])
async def test_what_is_no_small_file_is_not_read(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "addresses"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"a:1\n" + b"#" * (1 << 20))
    async with watched(FileResolver(path, 0.001)) as reported:
        await until(lambda: "it is no file of at most" in caplog.text or "Is a directory" in caplog.text)
    assert reported == []


async def test_only_ends_of_lines_end_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "addresses"
    path.write_text("# note\u2028old:9 \x0c older:9\ra:1\r\nb:2\n", newline="")
    async with watched(FileResolver(path, 0.001)) as reported:
        await until(lambda: bool(reported))
    assert reported == [("a:1", "b:2")]


async def test_several_resolvers_report_as_one() -> None:
    names = Names("10.0.0.1")
    joined = JoinedResolver([StaticResolver(["a:1", "10.0.0.1:1"]), DnsResolver("encoders", 1, 0.001, names.lookup)])
    async with watched(joined) as reported:
        await until(lambda: len(reported) == 2)
        names.addresses = ("10.0.0.2",)
        await until(lambda: len(reported) == 3)
    assert reported[-2:] == [("a:1", "10.0.0.1:1"), ("a:1", "10.0.0.1:1", "10.0.0.2:1")]


@pytest.mark.parametrize(
    ("targets", "kinds"),
    [
        (["127.0.0.1:1", "localhost:2", "[::1]:3"], StaticResolver),
        (["encoders:50052"], DnsResolver),
        (["dns:localhost:1"], DnsResolver),
        (["static:encoders:50052"], StaticResolver),
        (["file:/etc/triptych/encoders"], FileResolver),
        (["file:/etc/triptych/a", "file:/etc/triptych/b"], JoinedResolver),
        (["127.0.0.1:1", "encoders:1"], JoinedResolver),
        ([], StaticResolver),
    ],
)
def test_what_targets_mean(targets: list[str], kinds: type) -> None:
    assert type(resolver_of(targets, "encoder")) is kinds


def test_what_is_no_target_is_named() -> None:
    with pytest.raises(StartupError, match="'encoders' is not host:port, dns:"):
        resolver_of(["encoders"], "encoder")


async def test_what_is_no_host_name_is_a_name_that_is_not_found(caplog: pytest.LogCaptureFixture) -> None:
    async with watched(DnsResolver("a..b", 50052, 0.001)) as reported:
        await until(lambda: "it is no host name" in caplog.text)
        assert reported == []
