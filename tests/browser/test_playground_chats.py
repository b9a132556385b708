"""Chats that are kept in the browser: list, search, rename, delete, versions, branches, export and import."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect
from support.fakes.frontend import FakeFrontend, fails, says
from support.playground import PHONE, Opened, OpenPage
from triptych.errors import ServiceUnavailableError

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]
PICTURE = Path(__file__).parents[2] / "examples" / "three-shapes.png"


def chats(opened: Opened) -> Locator:
    return opened.page.locator("#chats li > a")


def answers(opened: Opened) -> Locator:
    return opened.page.locator(".assistant .text:visible")


def sent(frontend: FakeFrontend) -> list[str]:
    """The texts of the last request's messages."""
    return [message.content[-1].text for message in frontend.request.messages]


async def new_chat(opened: Opened, text: str) -> None:
    await opened.page.get_by_role("button", name="New chat").click()
    await expect(opened.page.locator("article")).to_have_count(0)
    await opened.ask(text)


async def test_a_chat_is_there_again_after_a_reload(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.page.locator("#attach[aria-disabled=false]").wait_for()
        await opened.page.locator("#files").set_input_files(PICTURE)
        await opened.ask("What is this?")
        await opened.page.reload()
        await expect(answers(opened)).to_have_text("Hello")
        await expect(opened.page.locator(".user img")).to_be_visible()
        assert await opened.page.locator(".user img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        await expect(opened.page.locator(".facts")).to_contain_text("3 tokens")
        await opened.ask("And now?")
    assert sent(opened.frontend) == ["What is this?", "Hello", "And now?"]
    assert opened.frontend.request.messages[0].content[0].HasField("media")


async def test_chats_are_listed_searched_and_opened(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    async with open_page(frontend) as opened:
        await expect(opened.page.locator("#chats-status")).to_contain_text("They stay in this browser.")
        await opened.ask("About cats")
        frontend.script = says("Dogs are loyal")
        await new_chat(opened, "About others")
        await expect(chats(opened)).to_have_text(["About others", "About cats"])
        search = opened.page.get_by_label("Search the chats")
        await search.fill("LOYAL dogs")
        await expect(chats(opened)).to_have_text(["About others"])
        await search.fill("fish")
        await expect(opened.page.locator("#chats-status")).to_have_text("No chat has these words.")
        await search.fill("")
        await chats(opened).get_by_text("About cats").click()
        await expect(answers(opened)).to_have_text("Hello")
        await expect(opened.page.locator("#chats [aria-current=page]")).to_have_text("About cats")
        await opened.page.go_back()
        await expect(answers(opened)).to_have_text("Dogs are loyal")


async def test_a_chat_is_renamed_and_deleted(open_page: OpenPage) -> None:
    async with open_page() as opened:
        page = opened.page
        await opened.ask("First")
        await new_chat(opened, "Second")
        await page.get_by_role("button", name="Rename Second").click()
        await page.get_by_label("Title").fill("Better")
        await page.keyboard.press("Enter")
        await expect(chats(opened)).to_have_text(["Better", "First"])
        # The focus is where it was, though the list is another.
        await expect(chats(opened).first).to_be_focused()
        await page.reload()
        await expect(chats(opened)).to_have_text(["Better", "First"])
        await page.get_by_role("button", name="Delete Better").click()
        await page.get_by_role("button", name="Cancel").click()
        await expect(chats(opened)).to_have_count(2)
        await page.get_by_role("button", name="Delete Better").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(chats(opened)).to_have_text(["First"])
        await expect(page.locator("article")).to_have_count(0)
        await page.get_by_role("button", name="Delete all").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
        await expect(chats(opened)).to_have_count(0)
        await page.reload()
        await expect(page.locator("#chats-status")).to_contain_text("They stay in this browser.")
        await expect(chats(opened)).to_have_count(0)


async def test_an_answer_goes_on_while_another_chat_is_shown(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.script = says("One", " two", gate=asyncio.Semaphore(1))
    async with open_page(frontend) as opened:
        await opened.send("Count")
        await expect(answers(opened)).to_have_text("One")
        gate = frontend.script.gate
        frontend.script = says("Other")
        await new_chat(opened, "Something else")
        for _ in range(4):
            gate.release()
        await chats(opened).get_by_text("Count").click()
        await expect(answers(opened)).to_have_text("One two")
        await opened.page.locator(".facts:visible").wait_for()
        await opened.page.reload()
        await expect(answers(opened)).to_have_text("One two")


async def test_a_page_that_is_closed_keeps_what_it_received(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.script = says("One", " two", gate=asyncio.Semaphore(1))
    async with open_page(frontend) as opened:
        await opened.send("Count")
        await expect(answers(opened)).to_have_text("One")
        await opened.page.wait_for_timeout(1500)  # it is kept once a second
        await opened.page.reload()
        await expect(answers(opened)).to_have_text("One")
        await expect(opened.page.locator(".assistant .error")).to_contain_text("closed before the end")
        async with asyncio.timeout(10):
            await frontend.was_cancelled.wait()


async def test_a_deleted_chat_ends_its_answer_and_stays_deleted(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.script = says("One", " two", gate=asyncio.Semaphore(1))
    async with open_page(frontend) as opened:
        await opened.send("Count")
        await expect(answers(opened)).to_have_text("One")
        await opened.page.get_by_role("button", name="Delete Count").click()
        await opened.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        async with asyncio.timeout(10):
            await frontend.was_cancelled.wait()
        await opened.page.reload()
        await expect(opened.page.locator("#chats-status")).to_contain_text("They stay in this browser.")
        await expect(chats(opened)).to_have_count(0)


async def test_an_edited_message_is_a_version_beside_the_first(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    async with open_page(frontend) as opened:
        page = opened.page
        await opened.ask("First")
        await opened.ask("Then")
        frontend.script = says("Changed")
        await page.locator(".user").first.hover()
        await page.get_by_role("button", name="Edit").first.click()
        field = page.get_by_label("Edit the message")
        await expect(field).to_be_focused()
        await expect(field).to_be_in_viewport()
        await field.fill("Draft")
        await page.keyboard.press("Escape")
        await expect(page.locator(".user > p:visible")).to_have_text(["First", "Then"])
        await page.get_by_role("button", name="Edit").first.click()
        await field.fill("Another")
        await page.keyboard.press("Enter")
        await expect(answers(opened)).to_have_text(["Changed"])
        assert sent(frontend) == ["Another"]
        await page.locator(".facts:visible").wait_for()
        await page.get_by_role("button", name="Version before").click()
        await expect(page.locator(".user > p:visible")).to_have_text(["First", "Then"])
        await page.reload()
        await expect(page.get_by_role("img", name="Version 1 of 2")).to_be_attached()
        await page.get_by_role("button", name="Version after").click()
        await expect(answers(opened)).to_have_text(["Changed"])


async def test_an_answer_that_is_asked_for_again_is_a_version_beside_the_first(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    async with open_page(frontend) as opened:
        await opened.ask("First")
        await opened.ask("Then")
        frontend.script = says("Better")
        await opened.page.get_by_role("button", name="Again").first.click()
        await expect(answers(opened)).to_have_text(["Better"])
        await opened.page.locator(".facts:visible").wait_for()
        assert sent(frontend) == ["First"]
        await opened.page.get_by_role("button", name="Version before").click()
        await expect(answers(opened)).to_have_text(["Hello", "Hello"])


async def test_an_answer_that_failed_leaves_no_version(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(ServiceUnavailableError("no engine can take this request"))
    async with open_page(frontend, refusals=True) as opened:
        await opened.send("Hi")
        frontend.script = says("Now")
        await opened.page.get_by_role("button", name="Try again").click()
        await expect(answers(opened)).to_have_text(["Now"])
        await expect(opened.page.locator(".versions")).to_have_count(0)


async def test_a_branch_is_a_chat_of_its_own(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.ask("First")
        await opened.ask("Then")
        await opened.page.get_by_role("button", name="Branch").first.click()
        await expect(answers(opened)).to_have_count(1)
        await opened.ask("Elsewhere")
        assert sent(opened.frontend) == ["First", "Hello", "Elsewhere"]
        await expect(chats(opened)).to_have_text(["First", "First"])
        await chats(opened).nth(1).click()
        await expect(opened.page.locator(".user > p")).to_have_text(["First", "Then"])


async def test_chats_are_exported_and_imported(open_page: OpenPage, tmp_path: Path) -> None:
    async with open_page() as opened:
        await opened.page.locator("#attach[aria-disabled=false]").wait_for()
        await opened.page.locator("#files").set_input_files(PICTURE)
        await opened.ask("What is this?")
        await new_chat(opened, "Second")
        async with opened.page.expect_download() as started:
            await opened.page.get_by_role("button", name="Export all").click()
        file = tmp_path / (await started.value).suggested_filename
        await (await started.value).save_as(file)
    assert file.name == "triptych-chats.json"
    assert [chat["title"] for chat in json.loads(file.read_text())["chats"]] == ["Second", "What is this?"]
    async with open_page() as opened:
        await opened.page.locator("#import-file").set_input_files(file)
        await expect(opened.page.locator("#chats-status")).to_have_text("Imported 2 chats of triptych-chats.json.")
        await chats(opened).get_by_text("What is this?").click()
        await expect(opened.page.locator(".user img")).to_be_visible()
        await opened.ask("And now?")
        broken = {"name": "broken.json", "mimeType": "application/json", "buffer": b'{"format": "triptych-chats", "version": 1}'}
        await opened.page.locator("#import-file").set_input_files(broken)
        await expect(opened.page.locator("#chats-status")).to_have_text("broken.json was not imported. chats is not a list.")
    assert opened.frontend.request.messages[0].content[0].HasField("media")


async def test_the_page_works_where_the_browser_keeps_nothing(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.page.add_init_script("""
            Object.defineProperty(window, "indexedDB", { value: { open() { throw new Error("not here"); } } });
            Storage.prototype.setItem = () => { throw new Error("no room"); };
        """)
        await opened.page.reload()
        await expect(opened.page.locator("#notice")).to_have_text("The chats of this browser cannot be read: not here")
        await opened.ask("Hi")
        await expect(opened.page.locator("#notice")).to_have_text("This chat is not kept: not here")
        await opened.ask("And now?")
        await opened.show("Settings")
        await opened.page.get_by_label("Temperature").fill("1")
        await expect(opened.page.locator("#notice")).to_have_text("The settings are not kept: no room")
    assert sent(opened.frontend) == ["Hi", "Hello", "And now?"]


async def test_chats_on_a_phone(open_page: OpenPage) -> None:
    async with open_page(view=PHONE) as opened:
        await opened.ask("First")
        await new_chat(opened, "Second")
        await opened.page.get_by_role("button", name="Chats", exact=True).tap()
        await chats(opened).get_by_text("First").tap()
        # The chat is shown at once.
        await expect(answers(opened)).to_have_text("Hello")
        await expect(opened.page.locator(".user > p")).to_have_text("First")


async def test_the_pace_of_an_answer_is_live(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.script = says("One", " two", " three", gate=asyncio.Semaphore(1))
    for number, delta in enumerate(frontend.script.choices[0]):
        delta.token_ids.append(number)
    async with open_page(frontend) as opened:
        await opened.send("Count")
        await expect(opened.page.locator(".pace")).to_contain_text(re.compile(r"^1 token · first \d"))
        await opened.page.wait_for_timeout(600)  # for a rate that means something
        frontend.script.gate.release()
        await expect(opened.page.locator(".pace")).to_contain_text(re.compile(r"^2 tokens · [\d.]+/s · first \d"))
        frontend.script.gate.release()
        await expect(opened.page.locator(".facts")).to_contain_text("3 tokens")
        await expect(opened.page.locator(".pace")).to_be_hidden()
