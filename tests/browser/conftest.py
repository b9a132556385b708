"""One Chromium for all tests of this folder. They are skipped only where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from support.playground import CHROMIUM, FLAGS, OpenPage, opened_page


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
def open_page(browser: Browser) -> OpenPage:
    """Opens the playground: see `opened_page`."""
    return partial(opened_page, browser)
