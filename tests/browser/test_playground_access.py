"""The playground has no finding of axe that is serious or critical: in light and dark, on a desktop and on a phone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from support.downloads import npm_packages
from support.fakes.frontend import FakeFrontend, fails, says
from support.playground import ABLE, PHONE, OpenPage
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]
VIEWS = {
    "light": {"viewport": {"width": 1440, "height": 900}},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": PHONE,
    "dark phone": PHONE | {"color_scheme": "dark"},
}
#: Everything that an answer can be made of.
ANSWER = """# Title

Some **bold**, `code` and [a link](https://example.com).

```python
def area(radius: float = 2.5) -> str:
    # the area
    return f"{radius ** 2}", None
```

```diff
- old
+ new
```

> said

| a | b |
|---|---|
| 1 | 2 |

1. one
   - two
"""
AXE = """async () => (await axe.run({ resultTypes: ["violations"] })).violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => [id, nodes.slice(0, 3).map(({ html, any }) => [html, ...any.map((one) => one.message)])])"""


@pytest.fixture(scope="session")
def axe(request: pytest.FixtureRequest) -> str:
    """axe-core's script."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("this machine has no npm")
    modules = npm_packages(Path(request.config.cache.mkdir("axe")), Path(npm), "axe-core@4.14.1")
    return (modules / "axe-core" / "axe.min.js").read_text()


def frontend_that_answers() -> FakeFrontend:
    frontend = FakeFrontend()
    frontend.model, frontend.script = ABLE, says(ANSWER)
    return frontend


async def findings(page: Page, axe: str) -> list[object]:
    """What axe finds that is serious or critical."""
    await page.evaluate(axe)
    return await page.evaluate(AXE)


@pytest.mark.parametrize("view", VIEWS)
async def test_an_empty_page(open_page: OpenPage, axe: str, view: str) -> None:
    async with open_page(view=VIEWS[view]) as opened:
        await opened.page.locator("#model option").first.wait_for(state="attached")
        assert await findings(opened.page, axe) == []


@pytest.mark.parametrize("view", VIEWS)
async def test_a_chat_and_all_panes(open_page: OpenPage, axe: str, view: str) -> None:
    frontend = frontend_that_answers()
    async with open_page(frontend, view=VIEWS[view], refusals=True) as opened:
        page = opened.page
        await page.locator("#attach[aria-disabled=false]").wait_for()
        picture = Path(__file__).parents[2] / "examples" / "three-shapes.png"
        files = [
            {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes"},
            {"name": "shapes.png", "mimeType": "image/png", "buffer": picture.read_bytes()},
        ]
        await page.locator("#files").set_input_files(files)
        await opened.ask("What is this?")
        await page.get_by_role("button", name="Again").click()
        await expect(page.locator(".versions")).to_be_visible()
        deltas = [
            generation_pb2.ChoiceDelta(reasoning="Let me think."),
            generation_pb2.ChoiceDelta(
                tool_call=generation_pb2.ToolCallDelta(index=0, id="1", name="look", arguments='{"at": 1}'),
                finish_reason=common_pb2.FINISH_REASON_STOP,
            ),
        ]
        frontend.script = says("")
        frontend.script.choices = [deltas]
        await opened.ask("Call a tool")
        assert await findings(page, axe) == []
        frontend.script = fails(ServiceUnavailableError("no engine can take this request"))
        await opened.send("Fail")
        await page.locator(".assistant .error:visible").wait_for()
        await page.get_by_role("button", name="Edit").first.click()
        await page.locator("#files").set_input_files(files)
        assert await findings(page, axe) == []
        await page.locator("#settings details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
        for pane in ["Chats", "Settings", *(["Insight"] if "phone" in view else [])]:
            await opened.show(pane)
            assert await findings(page, axe) == [], pane


@pytest.mark.parametrize("view", VIEWS)
async def test_dialogs(open_page: OpenPage, axe: str, view: str) -> None:
    async with open_page(frontend_that_answers(), view=VIEWS[view]) as opened:
        await opened.ask("Hi")
        await opened.page.get_by_role("button", name="API key").click()
        assert await findings(opened.page, axe) == []
        await opened.page.keyboard.press("Escape")
        await opened.show("Chats")
        for name in ("Rename Hi", "Delete Hi"):
            await opened.page.get_by_role("button", name=name).click()
            assert await findings(opened.page, axe) == [], name
            await opened.page.keyboard.press("Escape")


async def test_a_finding_is_seen(open_page: OpenPage, axe: str) -> None:
    """What the other tests rely on."""
    async with open_page() as opened:
        await opened.page.locator("#search").evaluate(
            "field => field.removeAttribute('aria-label') || field.removeAttribute('placeholder')"
        )
        await opened.page.locator("#welcome h2").evaluate("title => { title.className = 'faint'; title.style.color = '#ddd'; }")
        assert {name for name, _ in await findings(opened.page, axe)} == {"label", "color-contrast"}


async def test_keys_reach_the_list_of_chats(open_page: OpenPage) -> None:
    async with open_page() as opened:
        page = opened.page
        await opened.ask("First")
        await page.get_by_role("button", name="New chat").click()
        await page.locator("#search").focus()
        focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
        seen = []
        for _ in range(5):
            await page.keyboard.press("Tab")
            seen.append(await page.evaluate(focused))
            assert await page.evaluate("document.activeElement.checkVisibility()")
        assert seen == ["First", "Rename First", "Export First", "Delete First", "Import"]
        await page.locator("#chats a").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".user > p")).to_have_text("First")
