"""Chats in the playground: sending, streaming, stopping, errors, what the answers may contain."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import expect
from support.fakes.frontend import FakeFrontend, fails, says
from support.playground import ABLE, OpenPage
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError
from triptych.v1 import generation_pb2

pytestmark = pytest.mark.asyncio(loop_scope="session")


def frontend_that(script) -> FakeFrontend:
    frontend = FakeFrontend()
    frontend.model, frontend.script = ABLE, script
    return frontend


async def test_a_chat_of_two_turns(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.ask("Hi")
        await opened.ask("And now?")
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text(["Hello", "Hello"])
        await expect(opened.page.locator(".facts").last).to_contain_text("3 tokens")
    texts = [(message.role, message.content[0].text) for message in opened.frontend.request.messages]
    assert texts == [("user", "Hi"), ("assistant", "Hello"), ("user", "And now?")]


async def test_text_appears_as_it_is_generated(open_page: OpenPage) -> None:
    gate = asyncio.Semaphore(1)
    async with open_page(frontend_that(says("One", " two", " three", gate=gate))) as opened:
        text = opened.page.locator(".assistant .text:visible")
        await opened.send("Count")
        await expect(text).to_have_text("One")
        await expect(opened.page.get_by_role("button", name="Stop")).to_be_visible()
        gate.release()
        await expect(text).to_have_text("One two")
        for _ in range(3):
            gate.release()
        await expect(text).to_have_text("One two three")
        await expect(opened.page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.parametrize("how", ["button", "key"])
async def test_stopping_an_answer_cancels_it_at_the_server(open_page: OpenPage, how: str) -> None:
    frontend = frontend_that(says("One", " two", gate=asyncio.Semaphore(1)))
    async with open_page(frontend) as opened:
        await opened.send("Count")
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text("One")
        if how == "button":
            await opened.page.get_by_role("button", name="Stop").click()
        else:
            await opened.page.keyboard.press("Escape")
        async with asyncio.timeout(10):
            await frontend.was_cancelled.wait()
        await expect(opened.page.locator(".facts")).to_contain_text("stopped")
        # The part that came is the assistant's turn from now on.
        frontend.script = says("Three")
        await opened.ask("Go on")
    assert [message.content[0].text for message in frontend.request.messages] == ["Count", "One", "Go on"]


async def test_settings_reach_the_request(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.show("Settings")
        for label, value in {
            "System message": "Be brief.", "Temperature": "0.5", "Max tokens": "20", "Top p": "0.9", "Top k": "40", "Min p": "0.1",
            "Seed": "7", "Frequency penalty": "0.2", "Presence penalty": "-0.2", "Stop, one string per line": "END\n##",
        }.items():  # fmt: skip
            await opened.page.get_by_label(label).fill(value)
        await opened.ask("Hi")
    request = opened.frontend.request
    sampling = request.options.sampling
    assert [message.role for message in request.messages] == ["system", "user"]
    assert list(request.options.stop) == ["END", "##"]
    assert (sampling.temperature, sampling.max_tokens, sampling.top_k, sampling.seed) == (0.5, 20, 40, 7)
    assert (sampling.top_p, sampling.min_p) == pytest.approx((0.9, 0.1))
    assert (sampling.frequency_penalty, sampling.presence_penalty) == pytest.approx((0.2, -0.2))


async def test_untouched_settings_are_not_sent(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.ask("Hi")
    assert not opened.frontend.request.options.sampling.ListFields()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidRequestError("messages[0] is not to my taste", field="messages[0]"), "messages[0] is not to my taste"),
        (ServiceUnavailableError("no engine can take this request"), "no engine can take this request"),
    ],
    ids=["400", "503"],
)
async def test_an_error_is_shown_and_the_turn_can_be_sent_again(open_page: OpenPage, error: Exception, text: str) -> None:
    frontend = frontend_that(fails(error))
    async with open_page(frontend, refusals=True) as opened:
        await opened.send("Hi")
        await expect(opened.page.locator(".assistant .error")).to_contain_text(text)
        frontend.script = says("Now it works")
        await opened.page.get_by_role("button", name="Try again").click()
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text(["Now it works"])
    assert len(frontend.request.messages) == 1


async def test_a_refused_setting_is_marked(open_page: OpenPage) -> None:
    async with open_page(refusals=True) as opened:
        await opened.show("Settings")
        await opened.page.get_by_label("Temperature").fill("9")
        await opened.send("Hi")
        await expect(opened.page.locator("#temperature-fault")).to_contain_text("2")
        await expect(opened.page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
        await opened.page.get_by_label("Temperature").fill("1")
        await expect(opened.page.locator("#temperature-fault")).to_be_hidden()
    assert opened.frontend.requests == []


async def test_a_number_that_the_browser_cannot_read_is_marked_and_not_sent(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.show("Settings")
        await opened.page.get_by_label("Temperature").click()  # the pane is shown at the next frame: `focus` would not wait for it
        await opened.page.keyboard.type("1e")  # the field's value is empty then
        await expect(opened.page.locator("#temperature-fault")).to_have_text("This is not a number.")
        await opened.send("Hi")
        await expect(opened.page.locator("#notice")).to_contain_text("This is not a number.")
    assert opened.frontend.requests == []


async def test_a_full_queue_says_when_to_try_again(open_page: OpenPage) -> None:
    async with open_page(frontend_that(fails(QueueFullError("the queue is full", retry_after_s=3))), refusals=True) as opened:
        await opened.send("Hi")
        await expect(opened.page.locator(".assistant .error")).to_have_text("the queue is full. Try again in 3 s.")


@pytest.mark.parametrize("body", ["null", '{"error": null}', '{"error": "no"}', "<html>"])
async def test_an_error_of_somebody_else_is_told_by_its_status(open_page: OpenPage, body: str) -> None:
    async with open_page(refusals=True) as opened:
        await opened.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=502, body=body))
        await opened.send("Hi")
        await expect(opened.page.locator(".assistant .error")).to_have_text("The gateway answered with status 502.")


async def test_enter_that_ends_a_composition_in_safari_does_not_send(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.page.locator("#model option").first.wait_for(state="attached")
        await opened.page.get_by_label("Message", exact=True).fill("Hi")
        # Safari tells the end of the composition first. Its key has this code.
        event = "new KeyboardEvent('keydown', { key: 'Enter', keyCode: 229, bubbles: true, cancelable: true })"
        assert await opened.page.evaluate(f"document.querySelector('#message').dispatchEvent({event})")
        await opened.page.keyboard.press("Enter")
        await opened.page.locator(".facts").wait_for()
    assert len(opened.frontend.requests) == 1


async def test_an_error_in_the_middle_keeps_what_came(open_page: OpenPage) -> None:
    async with open_page(frontend_that(fails(ServiceUnavailableError("the engine went away"), after=2))) as opened:
        await opened.send("Hi")
        await expect(opened.page.locator(".assistant .error")).to_contain_text("the engine went away")
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text("ab")


@pytest.mark.parametrize("ending", ["", 'data: {"cut'])
async def test_a_stream_that_is_cut_off_is_an_error(open_page: OpenPage, ending: str) -> None:
    chunk = 'data: {"choices": [{"index": 0, "delta": {"content": "One"}}]}\n\n'
    async with open_page() as opened:
        answer = {"content_type": "text/event-stream", "body": chunk + ending}
        await opened.page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
        await opened.send("Count")
        await expect(opened.page.locator(".assistant .error")).to_contain_text("lost before the end")
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text("One")


async def test_a_connection_that_is_lost_is_an_error(open_page: OpenPage) -> None:
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "One"}}]}\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await shown.wait()
        writer.close()  # without the last chunk

    shown = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = "http://{}:{}/".format(*server.sockets[0].getsockname())
    async with server, open_page() as opened:
        await opened.page.route("**/v1/chat/completions", lambda route: route.continue_(url=address))
        await opened.send("Count")
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text("One")
        shown.set()
        await expect(opened.page.locator(".assistant .error")).to_contain_text("lost before the end")
        opened.errors.clear()  # the browser's own line about the connection


EVIL = """Look:

```html
<script>window.isHacked = true</script>
```

<img src=x onerror="window.isHacked = true"> and [a link](javascript:window.isHacked=true) and ![a picture](https://example.com/x.png)

<script>window.isHacked = true</script>
"""


@pytest.mark.parametrize("pieces", [[EVIL], list(EVIL)], ids=["whole", "by characters"])
async def test_what_a_model_writes_is_never_markup(open_page: OpenPage, pieces: list[str]) -> None:
    async with open_page(frontend_that(says(*pieces))) as opened:
        await opened.ask("<img src=x onerror='window.isHacked = true'>")
        log = opened.page.locator("#messages")
        await expect(log.locator("pre")).to_have_text("<script>window.isHacked = true</script>")
        await expect(log).to_contain_text('<img src=x onerror="window.isHacked = true">')
        assert await log.locator("img, script, iframe, [onerror]").count() == 0
        assert await log.locator("a").evaluate_all("links => links.map(link => link.href)") == ["https://example.com/x.png"]
        assert await opened.page.evaluate("window.isHacked") is None


async def test_markdown(open_page: OpenPage) -> None:
    text = "# Title\n\nSome **bold**, *leaning* and `code`.\n\n1. one\n2. two\n   - inner\n\n"
    text += "| a | b |\n|---|--:|\n| 1 | 2 |\n\n> said\n"
    async with open_page(frontend_that(says(*re.split(r"(?<= )", text)))) as opened:
        await opened.ask("Hi")
        shown = opened.page.locator(".markdown")
        await expect(shown.get_by_role("heading")).to_have_text("Title")
        await expect(shown.locator("strong")).to_have_text("bold")
        await expect(shown.locator("em")).to_have_text("leaning")
        await expect(shown.locator("p > code")).to_have_text("code")
        await expect(shown.locator("ol > li")).to_have_count(2)
        await expect(shown.locator("ol ul > li")).to_have_text("inner")
        await expect(shown.locator("td")).to_have_text(["1", "2"])
        await expect(shown.locator("td").nth(1)).to_have_css("text-align", "right")
        await expect(shown.locator("blockquote")).to_have_text("said")


async def test_code_has_colours_and_can_be_copied(open_page: OpenPage) -> None:
    code = 'def area(r):\n    return f"{3 * r}"'
    blocks = f"```python\n{code}\n```\n\n```unknown-language\n<b>\n```\n\n    indented\n\n- in a list\n  ```js\n  let a\n  ```\n"
    async with open_page(frontend_that(says(*re.split(r"(?<=\n)", blocks)))) as opened:
        await opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await opened.ask("Write code")
        shown = opened.page.locator(".code")
        await expect(shown.locator("pre")).to_have_text([code, "<b>", "indented", "let a"])
        await expect(shown.locator(".code-bar > span")).to_have_text(["python", "unknown-language", "text", "js"])
        await expect(shown.first.locator(".hljs-keyword")).to_have_text(["def", "return"])
        await expect(shown.nth(1).locator("[class^=hljs]")).to_have_count(0)
        colours = "all => new Set(all.map((one) => getComputedStyle(one).color)).size"
        assert await shown.first.locator("code, .hljs-keyword, .hljs-string, .hljs-number").evaluate_all(colours) == 4
        await opened.page.get_by_role("button", name="Copy the code, python").click()
        await expect(opened.page.locator("#notice")).to_have_text("Copied")
        assert await opened.page.evaluate("navigator.clipboard.readText()") == code


async def test_reasoning_is_apart_from_the_answer(open_page: OpenPage) -> None:
    deltas = [generation_pb2.ChoiceDelta(reasoning="Let me think."), *says("Four").choices[0]]
    script = says("Four")
    script.choices = [deltas]
    async with open_page(frontend_that(script)) as opened:
        await opened.ask("2 + 2?")
        await expect(opened.page.locator(".thought")).to_have_text("Let me think.")
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text("Four")


async def test_a_new_chat_forgets_the_old_one(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await opened.ask("Hi")
        await opened.page.get_by_role("button", name="New chat").click()
        await expect(opened.page.locator("article")).to_have_count(0)
        await opened.ask("Again")
    assert len(opened.frontend.request.messages) == 1
