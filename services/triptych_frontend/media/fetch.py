"""Fetches media by URL: http(s):, data: and file:, each within limits."""

from __future__ import annotations

import asyncio
import os
import stat
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp
from triptych.v1 import common_pb2
from triptych_common.host.fair_share import ServiceShare
from triptych_common.media.data_url import decode_data_url
from triptych_common.telemetry.histogram import SECONDS, Histograms
from yarl import URL

from triptych_frontend.errors import first_line, refusal
from triptych_frontend.media.address_guard import ForbiddenAddressError, GuardedConnector, check_url
from triptych_frontend.media.item import AUDIO, IMAGE, VIDEO
from triptych_frontend.settings import FrontendSettings

#: Most fetches at the same time. Further fetches wait; the wait counts towards their timeout.
_MAX_CONNECTIONS = 64
_CHUNK_BYTES = 64 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_SHOWN_CHARS = 120
_SCHEMES = frozenset({"http", "https", "data", "file"})
#: Modality -> accepted main types of content types.
_CONTENT_TYPES = {IMAGE: ("image",), AUDIO: ("audio", "video"), VIDEO: ("video", "image")}
#: Content types that servers send for unknown types.
_UNKNOWN_TYPES = ("", "application/octet-stream", "binary/octet-stream", "application/ogg")


class MediaFetcher:
    """Fetches media for clients. It follows redirects itself and checks each one. It ignores the environment's proxies."""

    def __init__(self, settings: FrontendSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._connections = ServiceShare(_MAX_CONNECTIONS)
        #: Durations of fetches, and failures, by the scheme of the address.
        self.seconds = Histograms(SECONDS)
        self.num_failures: Counter[str] = Counter()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def fetch(
        self,
        url: str,
        modality: common_pb2.Modality,
        field: str,
        take: Callable[[int], None] = lambda num_bytes: None,
        tenant: str = "",
    ) -> bytes:
        """The file at a URL.

        Args:
            field: the item's field in the request, for errors.
            tenant: whose request it is. Tenants share the connections.
            take: called with the number of bytes as they arrive. If it raises, the fetch ends with that error.

        Raises:
            InvalidRequestError: the URL is not allowed, or the file cannot be fetched within the limits.
        """
        scheme, start_s = url.partition(":")[0].lower(), time.perf_counter()
        name = scheme if scheme in _SCHEMES else "other"
        try:
            content = await self._fetch(url, scheme, modality, f"{field}.url", take, tenant)
        except Exception:
            self.num_failures[name] += 1
            raise
        self.seconds[name].observe(time.perf_counter() - start_s)
        return content

    async def _fetch(
        self, url: str, scheme: str, modality: common_pb2.Modality, field: str, take: Callable[[int], None], tenant: str
    ) -> bytes:
        try:
            if scheme in ("http", "https"):
                return await self._download(url, modality, take, tenant)
            if scheme in ("data", "file"):
                read = self._read_file if scheme == "file" else self._read_data
                content = await asyncio.to_thread(read, url)
                take(len(content))
                return content
            raise ValueError(f"must be an http:, https:, data: or file: address; given: {_shown(url)}")
        except _TooLargeError as error:
            raise refusal(field, str(error), self._settings.max_media_bytes) from error
        except (ValueError, ForbiddenAddressError) as error:
            raise refusal(field, str(error), value=_shown(url)) from error

    def _read_data(self, url: str) -> bytes:
        return decode_data_url(url, self._settings.max_media_bytes)

    def _read_file(self, url: str) -> bytes:
        root = self._settings.allowed_media_root
        if root is None:
            raise ValueError("is a file: address, which this frontend does not allow (allowed_media_root)")
        parts = urllib.parse.urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise ValueError("must name a file of this machine, as file:///path")
        refusal = ValueError("names no file below the allowed directory")
        try:
            path = Path(urllib.parse.unquote(parts.path)).resolve(strict=True)
            if not path.is_relative_to(root.resolve(strict=True)):
                raise refusal
            # Links were resolved above, so a link here is refused. O_NONBLOCK: opening a pipe must not wait for its other end.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError, RuntimeError):
            raise refusal from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise refusal
        with os.fdopen(handle, "rb") as file:
            content = file.read(self._settings.max_media_bytes + 1)
        if len(content) > self._settings.max_media_bytes:
            raise _TooLargeError(self._settings.max_media_bytes)
        return content

    async def _download(self, url: str, modality: common_pb2.Modality, take: Callable[[int], None], tenant: str) -> bytes:
        limit_s = self._settings.media_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                async with self._connections.held(tenant):
                    return await self._follow(URL(url), modality, take)
        except TimeoutError:
            raise ValueError(f"was not read within {limit_s:g} s (media_timeout_s)") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ValueError(f"cannot be fetched: {first_line(error)}") from error

    async def _follow(self, url: URL, modality: common_pb2.Modality, take: Callable[[int], None]) -> bytes:
        for _ in range(self._settings.max_media_redirects + 1):
            self._check_url(url)
            async with self._open_session().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._body(response, modality, take)
                location = response.headers.get("location")
            if not location:
                raise ValueError(f"answers {response.status} without saying where to go")
            url = url.join(URL(location))
        raise ValueError(f"redirects more than {self._settings.max_media_redirects} times (max_media_redirects)")

    def _check_url(self, url: URL) -> None:
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"leads to {_shown(str(url))}, which is no http: or https: address")
        if not self._settings.allow_private_media_addresses:
            check_url(url)

    async def _body(self, response: aiohttp.ClientResponse, modality: common_pb2.Modality, take: Callable[[int], None]) -> bytes:
        if response.status != 200:
            raise ValueError(f"answers {response.status}")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _UNKNOWN_TYPES and kind.partition("/")[0] not in _CONTENT_TYPES[modality]:
            raise ValueError(f"has the content type {kind[:_MAX_SHOWN_CHARS]}, none of {'/*, '.join(_CONTENT_TYPES[modality])}/*")
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise ValueError(f"comes compressed as {encoding[:_MAX_SHOWN_CHARS]}, though it was asked for as it is")
        limit = self._settings.max_media_bytes
        if (response.content_length or 0) > limit:
            raise _TooLargeError(limit)
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            body += chunk
            if len(body) > limit:
                raise _TooLargeError(limit)
            take(len(chunk))
        return bytes(body)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            guarded = not self._settings.allow_private_media_addresses
            connector = GuardedConnector if guarded else aiohttp.TCPConnector
            self._session = aiohttp.ClientSession(
                connector=connector(limit=_MAX_CONNECTIONS, use_dns_cache=False),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept-encoding": "identity", "user-agent": "triptych"},
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


class _TooLargeError(ValueError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"is larger than {limit} bytes (max_media_bytes)")


def _shown(url: str) -> str:
    return url if len(url) <= _MAX_SHOWN_CHARS else url[:_MAX_SHOWN_CHARS] + "..."
