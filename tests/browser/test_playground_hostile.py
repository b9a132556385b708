"""What models write and what files hold is hostile: it never runs, never loads anything, and never becomes markup of its own."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect
from support.fakes.frontend import FakeFrontend, says
from support.playground import Opened, OpenPage

pytestmark = pytest.mark.asyncio(loop_scope="session")
RUN = "window.isHacked=true"
HOSTILE = [
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg/onload={RUN}>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<iframe srcdoc='<script>top.{RUN}</script>'></iframe>",
    f"<details open ontoggle={RUN}>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--><img src=1 onerror={RUN}>'>",
    f"<form><math><mtext></form><form><mglyph><svg><mtext><style><path id='</style><img onerror={RUN} src>'>",
    f"<a href=javascript:{RUN}>a</a><base href=//example.com><link rel=stylesheet href=//example.com>",
    "<style>body{display:none}</style><meta http-equiv=refresh content='0;url=//example.com'>",
    f"[a](javascript:{RUN}) [b](JaVaScRiPt:{RUN}) [c](java\tscript:{RUN}) [d](&#106;avascript:{RUN}) [e](vbscript:{RUN})",
    f"[f](data:text/html;base64,PHNjcmlwdD4=) [g](\x01javascript:{RUN}) [h](//example.com) [i](blob:x) [j](#x) <javascript:{RUN}>",
    f'[a]("onmouseover={RUN}) [a](https://x.y/"onmouseover={RUN} "title\'onmouseover={RUN}")',
    f'![a](x"onerror={RUN}) ![b](https://example.com/b.png) ![c](javascript:{RUN}) ![d](data:image/svg+xml;base64,PHN2Zz4=)',
    f"[r]: javascript:{RUN}\n\n[r]\n\n[s]: https://example.com 'x'\n\n[s]",
    f'```"><img src=x onerror={RUN}>\n</code></pre><script>{RUN}</script>\n```',
    f"```html\n<script>{RUN}</script><img src=x onerror={RUN}>\n```",
    f"```js onmouseover={RUN}\n</code>`${{{RUN}}}`\n```",
    f"`<img src=x onerror={RUN}>` ~~<b onclick={RUN}>~~ **<i onclick={RUN}>**",
    f"| <img src=x onerror={RUN}> | [a](javascript:{RUN}) |\n|---|---|\n| <script>{RUN}</script> | &lt;script&gt; |",
    f"# <svg onload={RUN}>\n\n> <svg onload={RUN}>\n\n- <svg onload={RUN}>",
    '<input name=body id=message><form id=composer><button form="composer" formaction="//example.com">',
]
#: What an answer may consist of.
ALLOWED = "a,blockquote,br,button,code,div,em,h3,h4,h5,h6,hr,li,ol,p,pre,s,span,strong,table,tbody,td,th,thead,tr,ul"
#: Names of elements and of their attributes, and addresses of links.
CONTENT = """root => {
    const all = [...root.querySelectorAll("*")];
    const names = (list) => [...new Set(list)].sort();
    return {
        elements: names(all.map((one) => one.localName)),
        attributes: names(all.flatMap((one) => one.getAttributeNames())),
        links: names([...root.querySelectorAll("a[href]")].map((one) => new URL(one.href).protocol)),
    };
}"""


async def check(opened: Opened, root: str) -> None:
    """Nothing ran, and the element has only what Markdown makes."""
    content = await opened.page.locator(root).first.evaluate(CONTENT)
    assert set(content["elements"]) <= set(ALLOWED.split(","))
    allowed = {"class", "href", "target", "rel", "start", "type", "aria-label", "data-copy", "tabindex", "role"}
    assert set(content["attributes"]) <= allowed
    assert set(content["links"]) <= {"http:", "https:", "mailto:"}
    assert await opened.page.evaluate("window.isHacked") is None


async def test_hostile_answers(open_page: OpenPage) -> None:
    frontend = FakeFrontend()
    async with open_page(frontend) as opened:
        for text in HOSTILE:
            # In pieces, because each of them is read as if it were the end.
            frontend.script = says(*(text[at : at + 7] for at in range(0, len(text), 7)))
            await opened.ask(text)
        await expect(opened.page.locator(".assistant")).to_have_count(len(HOSTILE))
        for number in range(len(HOSTILE)):
            await check(opened, f".assistant >> nth={number} >> .markdown")
        await opened.page.reload()
        await expect(opened.page.locator(".assistant")).to_have_count(len(HOSTILE))
        assert await opened.page.evaluate("window.isHacked") is None


async def test_hostile_html_that_markdown_would_let_through(open_page: OpenPage) -> None:
    into = """async (html) => {
        const { fragmentOf } = await import("/playground/conversation/html.js");
        const root = document.body.appendChild(document.createElement("div"));
        root.id = "root";
        root.replaceChildren(fragmentOf(html));
    }"""
    async with open_page() as opened:
        for html in [*HOSTILE, f"<p id=message class=x style='color:red' data-copy=y aria-label=z onclick={RUN}>"]:
            await opened.page.evaluate(into, html)
            content = await opened.page.locator("#root").evaluate(CONTENT)
            assert set(content["attributes"]) <= {"class", "href", "start"}
            await check(opened, "#root")
            await opened.page.locator("#root").evaluate("root => root.remove()")
        # The browser's own lines about what it refused while the text was read.
        assert [error for error in opened.errors if "Content Security Policy" not in error] == []
        opened.errors.clear()


async def test_no_script_but_the_sanitiser_makes_html_of_a_text(open_page: OpenPage) -> None:
    made = """() => ["innerHTML", "outerHTML"].map((name) => {
        const element = document.body.appendChild(document.createElement("div"));
        try { element[name] = "<b>made</b>"; return "made"; } catch (error) { return error.name; }
    })"""
    async with open_page() as opened:
        assert await opened.page.evaluate(made) == ["TypeError", "TypeError"]
        other = "() => { try { trustedTypes.createPolicy('other', {}); return 'made'; } catch (error) { return error.name; } }"
        assert await opened.page.evaluate(other) == "TypeError"
        opened.errors.clear()  # the browser's own lines about what it refused


async def test_hostile_files_with_chats(open_page: OpenPage) -> None:
    evil = f"<img src=x onerror={RUN}>"
    question = {"parent": None, "role": "user", "text": evil, "media": [{"kind": "file", "name": evil, "format": None}]}
    question["media"][0]["dataUrl"] = "data:text/html;base64,PHNjcmlwdD53aW5kb3cuaXNIYWNrZWQ9dHJ1ZTwvc2NyaXB0Pg=="
    answer = {"parent": 0, "role": "assistant", "text": "\n\n".join(HOSTILE), "reasoning": evil, "model": evil, "finish": evil}
    answer |= {"error": evil, "calls": [dict.fromkeys(("id", "name", "arguments", "result"), evil)], "sentAt": 0, "tokens": [{}]}
    chat = {"id": evil, "title": evil, "at": 0, "head": 1, "all": [question, answer]}
    file = json.dumps({"format": "triptych-chats", "version": 1, "chats": [chat]}).encode()
    async with open_page() as opened:
        await opened.page.locator("#import-file").set_input_files(
            {"name": f"{evil}.json", "mimeType": "application/json", "buffer": file}
        )
        await opened.page.locator("#chats li > a").click()
        await expect(opened.page.locator("#chats li > a")).to_have_text(evil)
        await check(opened, ".assistant .markdown")
        await expect(opened.page.locator(".user > p")).to_have_text(evil)
        await expect(opened.page.locator(".user .document")).to_have_attribute("download", evil)
        assert await opened.page.locator("img[src=x], script:not([type=module])").count() == 0
        assert await opened.page.evaluate("window.isHacked") is None
