"""The playground in Chromium, in front of a real gateway with a fake frontend. Skipped only where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: No sandbox, because tests may run as root. A camera and a microphone that play a test signal.
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
#: Longest wait for anything on the page, in milliseconds.
_TIMEOUT_MS = 15_000


@dataclass
class Opened:
    """An open playground, and what it did."""

    page: Page
    frontend: FakeFrontend
    url: str
    #: Errors on the console, and exceptions.
    errors: list[str] = field(default_factory=list)
    #: Addresses that the page requested.
    requests: list[str] = field(default_factory=list)

    async def send(self, text: str) -> None:
        """Write a message and send it."""
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")

    async def until_answered(self) -> None:
        """Wait for the end of the answer."""
        await self.page.get_by_role("button", name="Send", exact=True).wait_for()


Open = Callable[..., AbstractAsyncContextManager[Opened]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Open:
    """Opens the playground: frontend, `expect_errors`, and settings of the gateway and (as `browser=`) of the browser."""

    @asynccontextmanager
    async def open_page(
        frontend: FakeFrontend | None = None, browser_options: dict[str, Any] | None = None, is_clean: bool = True, **settings: Any
    ) -> AsyncIterator[Opened]:
        frontend = frontend or FakeFrontend()
        async with gateway_server(frontend, **settings) as (host, port):
            context = await browser.new_context(**{"permissions": ["clipboard-write"]} | (browser_options or {}))
            context.set_default_timeout(_TIMEOUT_MS)
            try:
                opened = await _opened(context, frontend, f"http://{host}:{port}")
                yield opened
                if is_clean:
                    assert opened.errors == []
                assert [one for one in opened.requests if not one.startswith((opened.url, "blob:", "data:"))] == []
            finally:
                await context.close()

    return open_page


async def _opened(context: BrowserContext, frontend: FakeFrontend, url: str) -> Opened:
    page = await context.new_page()
    opened = Opened(page, frontend, url)
    page.on("console", lambda message: opened.errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    context.on("request", lambda request: opened.requests.append(request.url))
    await page.goto(url)
    return opened
