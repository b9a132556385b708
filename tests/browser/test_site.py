"""The documentation site: search, dark scheme, phone, and no request to elsewhere."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import pytest_asyncio
from docs.page import ROOT
from docs.site import build
from playwright.async_api import Browser, Page, expect
from support.playground import PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Pages with wide tables, long code, figures.
_WIDE = ["index", "docs/configuration", "docs/openai", "docs/architecture/measurements", "docs/quickstart", "clients/go/index"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = build(ROOT, tmp_path_factory.mktemp("site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture(loop_scope="session", params=["light", "phone"])
async def page(browser: Browser, url: str, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """The site on a desktop or a phone. At the end, it has asked only its own server, and logged no error."""
    async with await browser.new_context(base_url=url, **(PHONE if request.param == "phone" else {})) as context:
        page = await context.new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert [address for address in asked if not address.startswith((url, "data:", "blob:"))] == []
        assert errors == []


async def test_search_finds_a_setting(page: Page) -> None:
    await page.goto("/index.html")
    await page.locator("label[for=__search]:visible, .md-search__button:visible").click()
    await page.get_by_role("combobox", name="Search").fill("max-num-batched-tokens")
    await page.get_by_role("listbox", name="Search results").get_by_role("option").filter(has_text="Configuration").first.click()
    await expect(page).to_have_url(re.compile(r"/docs/configuration\.html"))


async def test_the_dark_scheme_is_a_click_away(page: Page) -> None:
    await page.goto("/index.html")
    background = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(background)
    for _ in range(2):  # from the system's scheme to light, and to dark
        await page.locator("label[for^=__palette]:visible").click()
    await expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    assert await page.evaluate(background) != light


async def test_only_tables_and_code_are_wider_than_the_window(page: Page) -> None:
    for path in _WIDE:
        await page.goto(f"/{path}.html")
        assert page.viewport_size
        assert await page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], path
