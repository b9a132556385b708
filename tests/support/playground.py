"""The playground, opened in Chromium in front of a real gateway with a fake frontend."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page
from triptych.v1 import common_pb2

from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: No sandbox, because tests may run as root. A camera and a microphone that play a test signal.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
#: Longest wait for anything on the page, in milliseconds.
_TIMEOUT_MS = 15_000
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
#: A model that takes everything that a request can have.
ABLE = common_pb2.ModelInfo()
ABLE.CopyFrom(MODEL)
ABLE.capabilities.MergeFrom(
    common_pb2.Capabilities(
        tasks=[common_pb2.TASK_GENERATE],
        modalities=[common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO, common_pb2.MODALITY_VIDEO],
        constraints=["json_schema"],
        tools=True,
    )
)


@dataclass
class Opened:
    """An open playground, and what it did."""

    page: Page
    frontend: FakeFrontend
    url: str
    #: Errors and warnings on the console, and exceptions.
    errors: list[str] = field(default_factory=list)
    #: Addresses that the page requested.
    requests: list[str] = field(default_factory=list)

    async def send(self, text: str) -> None:
        """Write a message and send it, once the page knows the model."""
        await self.page.locator("#model option").first.wait_for(state="attached")
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")

    async def show(self, pane: str) -> None:
        """Choose a pane by its button."""
        await self.page.get_by_role("button", name=pane, exact=True).click()

    async def ask(self, text: str) -> None:
        """Send a message, and wait until its answer is complete."""
        facts = self.page.locator(".facts:visible")
        number = await facts.count()
        await self.send(text)
        await facts.nth(number).wait_for()


OpenPage = Callable[..., AbstractAsyncContextManager[Opened]]


@asynccontextmanager
async def opened_page(
    browser: Browser,
    frontend: FakeFrontend | None = None,
    *,
    view: dict[str, Any] | None = None,
    refusals: bool = False,
    **settings: Any,
) -> AsyncIterator[Opened]:
    """Open the playground of a new gateway. At the end, check that the page wrote no error and called nobody else.

    Args:
        frontend: by default one whose model takes everything.
        view: options of the browser, for example its size.
        refusals: whether the gateway refuses requests. A browser writes these to its console.
        settings: fields of GatewaySettings.
    """
    if frontend is None:
        frontend = FakeFrontend()
        frontend.model = ABLE
    async with gateway_server(frontend, **settings) as (host, port):
        context = await browser.new_context(**(view or {}))
        context.set_default_timeout(_TIMEOUT_MS)
        try:
            opened = await _opened(context, frontend, f"http://{host}:{port}")
            yield opened
            refused = "Failed to load resource: the server responded"
            assert [error for error in opened.errors if not (refusals and error.startswith(refused))] == []
            assert [one for one in opened.requests if not one.startswith((f"{opened.url}/", "blob:"))] == []
        finally:
            await context.close()


async def _opened(context: BrowserContext, frontend: FakeFrontend, url: str) -> Opened:
    page = await context.new_page()
    opened = Opened(page, frontend, url)
    page.on("console", lambda message: opened.errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    context.on("request", lambda request: opened.requests.append(request.url))
    await page.goto(url)
    return opened
