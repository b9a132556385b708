"""Chats in the playground."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_answer_appears(open_page) -> None:
    async with open_page() as opened:
        await opened.send("Hi")
        await opened.page.get_by_text("Hello").wait_for()
        await opened.until_answered()
        await opened.page.screenshot(path="/tmp/wt/pg1.png")
        print(opened.errors, opened.requests)
    assert opened.frontend.request.messages[0].content[0].text == "Hi"
