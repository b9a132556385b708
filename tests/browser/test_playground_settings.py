"""Settings that are kept in the browser: values, presets, the chosen model."""

from __future__ import annotations

import pytest
from playwright.async_api import expect
from support.playground import OpenPage

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]


async def test_settings_and_presets_are_kept(open_page: OpenPage) -> None:
    async with open_page() as opened:
        page = opened.page
        await opened.show("Settings")
        await page.get_by_label("System message").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.5")
        await page.get_by_role("button", name="Save as a preset").click()
        await page.get_by_label("Name").fill("Brief")
        await page.keyboard.press("Enter")
        await page.get_by_label("Temperature").fill("1.5")
        await page.reload()
        await opened.show("Settings")
        await expect(page.get_by_label("Temperature")).to_have_value("1.5")
        await page.get_by_label("Preset").select_option("Brief")
        await expect(page.get_by_label("Temperature")).to_have_value("0.5")
        await opened.ask("Hi")
        await page.get_by_label("Preset").select_option("The model's defaults")
        await expect(page.get_by_label("System message")).to_have_value("")
        await page.get_by_label("Preset").select_option("Brief")
        await page.locator("#preset-delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.locator("#presets option")).to_have_text(["The model's defaults"])
        # The values stay.
        await expect(page.get_by_label("System message")).to_have_value("Be brief.")
    assert opened.frontend.request.messages[0].content[0].text == "Be brief."
    assert opened.frontend.request.options.sampling.temperature == 0.5


@pytest.mark.parametrize(
    "kept", ["{", "[]", '{"settings": {"temperature": 7, "logprobs": "yes"}, "presets": 5, "model": {}}', "null"]
)
async def test_settings_that_somebody_else_wrote_are_not_taken(open_page: OpenPage, kept: str) -> None:
    async with open_page() as opened:
        await opened.page.evaluate("kept => localStorage.setItem('triptych-settings', kept)", kept)
        await opened.page.reload()
        await opened.ask("Hi")
    assert not opened.frontend.request.options.sampling.ListFields()


async def test_the_model_that_was_chosen_is_kept(open_page: OpenPage) -> None:
    async with open_page() as opened:
        page = opened.page
        await page.locator("#model option").first.wait_for(state="attached")
        [model] = await page.evaluate("async () => (await (await fetch('v1/models')).json()).data")
        listed = {"data": [model, model | {"id": "another/model"}]}
        await page.route("**/v1/models", lambda route: route.fulfill(json=listed))
        await page.reload()
        await page.get_by_label("Model", exact=True).select_option("another/model")
        await page.reload()
        await expect(page.get_by_label("Model", exact=True)).to_have_value("another/model")
        await page.get_by_label("Model", exact=True).select_option(model["id"])
        await opened.ask("Hi")
        # Where there are several models, an answer says which one gave it.
        await expect(page.locator(".facts")).to_contain_text(model["id"])
