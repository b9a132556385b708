"""Takes the pictures of docs/playground.md from a running stack: `triptych serve`, then `python -m tools.docs.screenshots [URL]`.

They are not part of `make docs`, because they need a model and Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from .page import ROOT

_FIGURES = ROOT / "docs" / "figures"
_PICTURE = ROOT / "examples" / "three-shapes.png"
_QUESTION = "Where is the triangle?"
#: Of chats that are listed.
_EARLIER = ("Explain in two sentences why the sky is blue.", "What is the capital of France?")
_CODE = "Write a Python function that adds two numbers. Answer with a code block."
#: Longest wait for an answer, in milliseconds.
_TIMEOUT_MS = 60_000
_MAX_BYTES = 150_000


@dataclass(frozen=True)
class View:
    """One picture: its name, and how the browser shows the page."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    #: Which pane is shown where several share the room.
    pane: str = "Chats"
    is_phone: bool = False
    with_tokens: bool = False


VIEWS = (
    View("playground-light", 1440, 900),
    View("playground-dark", 1440, 900, scheme="dark", pane="Settings", with_tokens=True),
    View("playground-phone", 390, 844, pane="Chat", is_phone=True),
    View("playground-phone-insight", 390, 844, is_phone=True, pane="Insight"),
)


def main() -> None:
    """Take all pictures."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("Chromium is needed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for view in VIEWS:
            save(_FIGURES / f"{view.name}.png", picture(browser, view, url))
        browser.close()


def picture(browser: Browser, view: View, url: str) -> bytes:
    """A conversation, as PNG."""
    options: dict[str, Any] = {"viewport": {"width": view.width, "height": view.height}, "color_scheme": view.scheme}
    if view.is_phone:
        options |= {"device_scale_factor": 2, "is_mobile": True, "has_touch": True}
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        page.goto(url)
        page.locator("#attach[aria-disabled=false]").wait_for()
        show(page, "Settings")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Max tokens").fill("100")
        for question in _EARLIER:
            if view.is_phone:
                show(page, "Chat")
            ask(page, question, 1)
            page.get_by_role("button", name="New chat").click()
            page.locator("article").first.wait_for(state="detached")
        if view.pane == "Chat":
            ask(page, _CODE, 1)
        else:
            page.locator("#files").set_input_files(_PICTURE)
            ask(page, _QUESTION, 1)
        if not view.is_phone:
            if view.with_tokens:
                page.get_by_label("Log probabilities of tokens").check()
            ask(page, _EARLIER[0], 2)
            page.locator(".assistant").first.get_by_role("button", name="Timeline").click()
        show(page, view.pane)
        if view.with_tokens:
            page.locator(".token").nth(5).hover()
        page.wait_for_timeout(2500)  # until the chart of the load has some points
        return page.screenshot()


def show(page: Page, pane: str) -> None:
    """Choose a pane."""
    page.get_by_role("button", name=pane, exact=True).click()


def ask(page: Page, text: str, number: int) -> None:
    """Send a message, and wait for its answer, which is this one of the conversation."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    page.locator(".assistant").nth(number - 1).locator(".facts").get_by_text("total").wait_for()


def save(path: Path, png: bytes) -> None:
    """Write a picture with a palette of 256 colours."""
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")
    if size > _MAX_BYTES:
        sys.exit(f"{path.name} has more than {_MAX_BYTES:,} bytes")


if __name__ == "__main__":
    main()
