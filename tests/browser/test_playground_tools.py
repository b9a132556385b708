"""The panes for tools and for structured output."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Locator, expect
from support.fakes.frontend import FakeFrontend, says
from support.playground import ABLE, Opened, OpenPage
from triptych.v1 import common_pb2, generation_pb2

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


async def pane(opened: Opened, title: str, field: str) -> Locator:
    """Open a pane. Its field."""
    await opened.show("Settings")
    await opened.page.locator("summary").get_by_text(title).click()
    return opened.page.locator(f"textarea[name={field}]")


def calling_frontend() -> FakeFrontend:
    """Calls the tool, then answers."""
    frontend = FakeFrontend()
    frontend.model = ABLE
    called = says("")
    pieces = [("call_1", "get_weather", '{"city":'), ("", "", '"Rome"}')]
    called.choices = [
        [
            generation_pb2.ChoiceDelta(tool_call=generation_pb2.ToolCallDelta(index=0, id=call_id, name=name, arguments=arguments))
            for call_id, name, arguments in pieces
        ]
    ]
    called.choices[0][-1].finish_reason = common_pb2.FINISH_REASON_STOP
    frontend.script = lambda request: says("It rains.") if request.messages[-1].role == "tool" else called
    return frontend


@pytest.mark.parametrize("tools", [[{"type": "function", "function": WEATHER}], [WEATHER], WEATHER], ids=["tools", "list", "one"])
async def test_tools_reach_the_request_and_results_go_back(open_page: OpenPage, tools: object) -> None:
    frontend = calling_frontend()
    async with open_page(frontend) as opened:
        await (await pane(opened, "Tools", "tools")).fill(json.dumps(tools))
        await expect(opened.page.locator("#tools-mark")).to_be_visible()
        await opened.ask("How is the weather in Rome?")
        await expect(opened.page.locator(".call pre")).to_contain_text('"city": "Rome"')
        await opened.page.get_by_label("Result of get_weather").fill("rain")
        await opened.page.get_by_role("button", name="Send results").click()
        await expect(opened.page.locator(".assistant .text:visible")).to_have_text("It rains.")
    first, second = frontend.requests
    assert [tool.name for tool in first.tools] == ["get_weather"]
    assert json.loads(first.tools[0].parameters_json_schema) == WEATHER["parameters"]
    call, result = second.messages[1:]
    assert (call.tool_calls[0].id, call.tool_calls[0].arguments) == ("call_1", '{"city":"Rome"}')
    assert (result.role, result.tool_call_id, result.content[0].text) == ("tool", "call_1", "rain")


async def test_the_tool_choice_reaches_the_request(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await (await pane(opened, "Tools", "tools")).fill(json.dumps(WEATHER))
        await opened.page.get_by_label("Tool choice").select_option("required")
        await opened.ask("Hi")
    assert opened.frontend.request.tool_choice.mode == generation_pb2.ToolChoice.MODE_REQUIRED


async def test_a_schema_reaches_the_request(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await (await pane(opened, "Structured output", "schema")).fill(json.dumps(SCHEMA))
        await opened.ask("Where?")
    assert json.loads(opened.frontend.request.options.constraint.json_schema) == SCHEMA


@pytest.mark.parametrize(
    ("title", "field", "text", "fault"),
    [
        ("Tools", "tools", '[{"name": }]', "This is not JSON"),
        ("Tools", "tools", '[{"parameters": {}}]', "Each tool needs a name"),
        ("Structured output", "schema", "{'type': 1}", "This is not JSON"),
        ("Structured output", "schema", "[1]", "A JSON Schema is an object"),
    ],
)
async def test_wrong_json_is_shown_at_its_field_and_not_sent(
    open_page: OpenPage, title: str, field: str, text: str, fault: str
) -> None:
    async with open_page() as opened:
        area = await pane(opened, title, field)
        await area.fill(text)
        await expect(opened.page.locator(f"#{field}-fault")).to_contain_text(fault)
        await expect(area).to_have_attribute("aria-invalid", "true")
        await opened.send("Hi")
        await expect(opened.page.locator("#notice")).to_contain_text(fault)
        await expect(opened.page.get_by_label("Message", exact=True)).to_have_value("Hi")
        await area.fill("")
        await expect(opened.page.locator(f"#{field}-fault")).to_be_hidden()
        await opened.ask("Hi")
    assert len(opened.frontend.requests) == 1


@pytest.mark.parametrize(("title", "field"), [("Tools", "tools"), ("Structured output", "schema")])
async def test_the_examples_can_be_sent(open_page: OpenPage, title: str, field: str) -> None:
    async with open_page() as opened:
        await pane(opened, title, field)
        await opened.page.locator(f"[data-example={field}]").click()
        await opened.ask("Hi")
    request = opened.frontend.request
    assert bool(request.tools) == (field == "tools")
    assert request.options.HasField("constraint") == (field == "schema")
