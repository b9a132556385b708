"""The page itself: API key, keyboard, phone, dark mode, contrast, scrolling."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from support.fakes.frontend import FakeFrontend, fails, says
from support.playground import ABLE, PHONE, OpenPage
from triptych.errors import ModelNotFoundError
from triptych.v1 import common_pb2

PICTURE = Path(__file__).parents[2] / "examples" / "three-shapes.png"
pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_key_is_asked_for_where_one_is_needed(open_page: OpenPage) -> None:
    async with open_page(api_key="secret", refusals=True) as opened:
        dialog = opened.page.get_by_role("dialog", name="API key")
        await expect(dialog).to_contain_text("This gateway needs an API key.")
        await opened.page.get_by_label("Key", exact=True).fill("wrong")
        await opened.page.keyboard.press("Enter")
        await expect(dialog).to_contain_text("This key is not right.")
        await opened.page.get_by_label("Key", exact=True).fill("secret")
        await opened.page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        await opened.ask("Hi")
        # The key lives as long as the tab.
        storages = "[Object.values(sessionStorage), Object.values(localStorage), document.cookie]"
        assert await opened.page.evaluate(storages) == [["secret"], [], ""]
        await opened.page.reload()
        await opened.ask("Hi")


async def test_a_refusal_while_the_dialog_closes_opens_it_again(open_page: OpenPage) -> None:
    refused = """async () => {
        const { change } = await import("/playground/state.js");
        const dialog = document.querySelector("#key-dialog");
        dialog.close();
        change((state) => { state.keyWanted = "This key is not right."; });
        await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
    }"""
    async with open_page() as opened:
        dialog = opened.page.get_by_role("dialog", name="API key")
        await opened.page.get_by_role("button", name="API key").click()
        await dialog.wait_for()
        await opened.page.evaluate(refused)
        await expect(dialog).to_contain_text("This key is not right.")
        await opened.page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await opened.page.get_by_role("button", name="API key").click()
        await opened.page.get_by_role("button", name="Cancel").click()
        await expect(dialog).to_be_hidden()


async def test_a_key_that_http_cannot_carry_is_refused_at_its_field(open_page: OpenPage) -> None:
    async with open_page(api_key="secret", refusals=True) as opened:
        field = opened.page.get_by_label("Key", exact=True)
        await field.fill("\u043a\u043b\u044e\u0447")
        await opened.page.keyboard.press("Enter")
        assert not await field.evaluate("field => field.validity.valid")
        await expect(opened.page.get_by_role("dialog", name="API key")).to_be_visible()
        assert await opened.page.evaluate("sessionStorage.length") == 0
        await field.fill(" secret ")
        await opened.page.keyboard.press("Enter")
        await opened.ask("Hi")


async def test_everything_works_by_keyboard(open_page: OpenPage) -> None:
    async with open_page() as opened:
        page = opened.page
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="To the message")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.type("Hi")
        await page.locator("#model option").first.wait_for(state="attached")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("you")
        await page.keyboard.press("Enter")
        await expect(page.locator(".facts")).to_be_visible()
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        # Backwards to the answer's buttons.
        await tab_to(page, "Again", back=True)
        await page.keyboard.press("Enter")
        await expect(page.locator("article.assistant .facts:visible")).to_have_count(1)
        for name in ("Attach files", "Take a picture", "Record sound", "Send"):
            await tab_to(page, name)
        await tab_to(page, "New chat", back=True)
        await page.keyboard.press("Enter")
        await expect(page.locator("article")).to_have_count(0)
    assert [request.messages[0].content[0].text for request in opened.frontend.requests] == ["Hi\nyou", "Hi\nyou"]


async def tab_to(page: Page, name: str, back: bool = False) -> None:
    """Press Tab until a button of this name has the focus, which must be visible."""
    for _ in range(60):
        await page.keyboard.press("Shift+Tab" if back else "Tab")
        focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
        if await page.evaluate(focused) == name:
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    raise AssertionError(f"no button {name!r}")


async def test_a_phone(open_page: OpenPage) -> None:
    async with open_page(view=PHONE) as opened:
        page = opened.page
        await opened.ask("Hi " + "unbreakable" * 30)
        for pane in ("Chats", "Chat", "Settings", "Insight"):
            await page.get_by_role("button", name=pane, exact=True).tap()
            await expect(page.locator(f"#{pane.lower()}-pane")).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth") == 390
            assert await page.locator(".pane:visible").count() == 1
            outside = "[...document.querySelectorAll('button, a, input, select, textarea')].filter(one => one.checkVisibility() && "
            outside += "!one.matches('.skip') && (one.getBoundingClientRect().right > 391 || one.getBoundingClientRect().left < 0))"
            assert await page.evaluate(f"{outside}.map(one => one.id || one.textContent)") == []


#: The smallest contrast between text and what is behind it.
CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    element.checkVisibility() && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return texts.map((element) => {
    const [a, b] = [rgba(getComputedStyle(element).color), behind(element)].map((colour) => luminance(colour.slice(0, 3)));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)];
  }).sort((one, other) => one[0] - other[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_contrast(open_page: OpenPage, scheme: str) -> None:
    async with open_page(view={"color_scheme": scheme}) as opened:
        await opened.ask("Hi")
        [page_colour, *_] = await opened.page.evaluate("[getComputedStyle(document.body).backgroundColor]")
        assert (sum(map(int, page_colour[4:-1].split(", "))) > 384) == (scheme == "light")
        ratios = await opened.page.evaluate(CONTRAST)
        assert len(ratios) > 20
        assert [entry for entry in ratios if entry[0] < 4.5] == []


async def test_the_page_waits_for_its_gateway(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.list_models_gate = asyncio.Event()
    async with open_page(frontend) as opened:
        await opened.page.get_by_label("Message", exact=True).fill("Hi")
        await opened.page.keyboard.press("Enter")
        await expect(opened.page.locator("#notice")).to_contain_text("not told its model yet")
        await expect(opened.page.get_by_label("Message", exact=True)).to_have_value("Hi")
        frontend.list_models_gate.set()
        await opened.ask("Hi")


async def test_models_are_found_again_when_the_one_of_the_request_is_gone(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    async with open_page(frontend, refusals=True) as opened:
        await opened.ask("Hi")
        frontend.model = common_pb2.ModelInfo(name="newer/model")
        frontend.script = fails(ModelNotFoundError("no model of that name", field="model"))
        await opened.send("And now?")
        await expect(opened.page.locator("#model option")).to_have_text(["newer/model"])
        await expect(opened.page.get_by_label("Model", exact=True)).to_have_value("newer/model")


async def test_the_page_says_so_while_the_gateway_is_away(open_page: OpenPage) -> None:
    async with open_page(refusals=True) as opened:
        await opened.ask("Hi")
        await opened.page.context.set_offline(True)
        await opened.send("Are you there?")
        await expect(opened.page.locator("#trouble")).to_have_text("The gateway does not answer.")
        await opened.page.context.set_offline(False)
        await expect(opened.page.locator("#trouble")).to_be_hidden()
        await opened.page.get_by_role("button", name="Try again").click()
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text(["Hello", "Hello"])
        opened.errors.clear()  # the browser's own lines about the connection


async def test_text_from_right_to_left_begins_at_the_right(open_page: OpenPage) -> None:
    text = "\u0645\u0631\u062d\u0628\u0627"
    frontend = FakeFrontend()
    frontend.script = says(f"{text}\n\n# {text}\n\nHello")
    room = """block => {
        const range = document.createRange();
        range.selectNodeContents(block);
        return Math.round(block.getBoundingClientRect().right - range.getBoundingClientRect().right) === 0;
    }"""
    async with open_page(frontend) as opened:
        await opened.ask(text)
        blocks = await opened.page.locator(".markdown:visible > *").all()
        assert [await block.evaluate(room) for block in blocks] == [True, True, False]


async def test_a_clipboard_that_refuses(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.ask("Hi")
        await opened.page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
        await opened.page.locator(".assistant").get_by_role("button", name="Copy").click()
        await expect(opened.page.locator("#notice")).to_contain_text("did not copy")


async def test_a_model_that_does_not_chat(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    frontend.model = common_pb2.ModelInfo(name="vectors", capabilities=common_pb2.Capabilities(tasks=[common_pb2.TASK_EMBED]))
    async with open_page(frontend) as opened:
        await expect(opened.page.locator("#trouble")).to_have_text("vectors generates no text. It does: embed.")
        await opened.send("Hi")
        await expect(opened.page.locator("#notice")).to_contain_text("generates no text")
    assert frontend.requests == []


async def test_the_documentation_is_one_click_away(open_page: OpenPage) -> None:
    async with open_page() as opened:
        async with opened.page.expect_navigation():
            await opened.page.get_by_role("link", name="API documentation").click()
        assert opened.page.url == f"{opened.url}/docs"


async def test_the_end_is_in_view_until_the_reader_scrolls_up(open_page: OpenPage) -> None:
    lines = [f"Line {number}\n\n" for number in range(60)]
    frontend = FakeFrontend()
    frontend.model, frontend.script = ABLE, says(*lines, gate=asyncio.Semaphore(30))
    rest = "log => Math.round(log.scrollHeight - log.scrollTop - log.clientHeight)"
    async with open_page(frontend) as opened:
        log = opened.page.locator("#log")
        await opened.page.locator("#attach[aria-disabled=false]").wait_for()
        await opened.page.locator("#files").set_input_files(PICTURE)
        await opened.send("Count")
        await expect(opened.page.locator(".markdown")).to_contain_text("Line 29")
        assert await log.evaluate(rest) < 5
        await log.hover()
        await opened.page.mouse.wheel(0, -400)
        await opened.page.wait_for_timeout(200)
        place = await log.evaluate("log => log.scrollTop")
        for _ in range(31):
            frontend.script.gate.release()
        await expect(opened.page.locator(".markdown")).to_contain_text("Line 59")
        assert await log.evaluate("log => log.scrollTop") == place
        # A new message brings the end back, with a picture that has no size before it is loaded.
        frontend.script = says("Fine")
        await opened.page.locator("#files").set_input_files(PICTURE)
        await opened.ask("And now?")
        await opened.page.wait_for_timeout(200)
        assert await log.evaluate(rest) < 5
