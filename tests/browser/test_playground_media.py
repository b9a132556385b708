"""Pictures and sounds in the playground: by file, drag, paste, camera and microphone."""

from __future__ import annotations

import asyncio
import base64
import wave
from io import BytesIO
from pathlib import Path

import pytest
from playwright.async_api import expect
from support.fakes.frontend import MODEL, FakeFrontend
from support.pdf import pdf
from support.playground import Opened, OpenPage
from triptych.v1 import common_pb2

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]
PICTURE = Path(__file__).parents[2] / "examples" / "three-shapes.png"
#: A page's script that makes a DataTransfer with the picture.
WITH_PICTURE = """
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "shapes.png", { type: "image/png" }));
"""


async def by_file(opened: Opened) -> None:
    async with opened.page.expect_file_chooser() as chosen:
        await opened.page.get_by_role("button", name="Attach files").click()
    await (await chosen.value).set_files(PICTURE)


async def by_drag(opened: Opened) -> None:
    script = f"(content) => {{ {WITH_PICTURE} for (const type of ['dragover', 'drop']) document.body.dispatchEvent(new DragEvent("
    script += "type, { dataTransfer: data, bubbles: true, cancelable: true })); }"
    await opened.page.evaluate(script, base64.b64encode(PICTURE.read_bytes()).decode())


async def by_paste(opened: Opened) -> None:
    script = f"(content) => {{ {WITH_PICTURE} document.querySelector('#message').dispatchEvent("
    script += "new ClipboardEvent('paste', { clipboardData: data, bubbles: true })); }"
    await opened.page.evaluate(script, base64.b64encode(PICTURE.read_bytes()).decode())


async def until_able(opened: Opened, button: str = "Attach files") -> None:
    await expect(opened.page.get_by_role("button", name=button)).to_have_attribute("aria-disabled", "false")
    await opened.page.locator("#model option").first.wait_for(state="attached")


def media_of(frontend: FakeFrontend) -> list[tuple[int, bytes]]:
    """Kind and content of the files in the last request."""
    parts = [part.media for part in frontend.request.messages[-1].content if part.HasField("media")]
    return [(part.modality, part.data or frontend.uploads[part.upload_id]) for part in parts]


@pytest.mark.parametrize("attach", [by_file, by_drag, by_paste])
async def test_a_picture_reaches_the_request(open_page: OpenPage, attach) -> None:
    async with open_page() as opened:
        await until_able(opened)
        await attach(opened)
        await expect(opened.page.locator(".chip img")).to_be_visible()
        await opened.ask("What is this?")
        await expect(opened.page.locator(".chip")).to_have_count(0)
        await expect(opened.page.locator(".user img")).to_be_visible()
    assert media_of(opened.frontend) == [(common_pb2.MODALITY_IMAGE, PICTURE.read_bytes())]
    assert opened.frontend.request.messages[0].content[-1].text == "What is this?"


async def test_many_pictures_leave_the_composer_on_the_screen(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened)
        await opened.page.locator("#files").set_input_files([PICTURE] * 40)
        await expect(opened.page.locator(".chip")).to_have_count(40)
        assert await opened.page.evaluate("document.documentElement.scrollHeight === innerHeight")


async def test_a_picture_can_be_removed(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened)
        await by_file(opened)
        await opened.page.get_by_role("button", name="Remove three-shapes.png").click()
        await opened.ask("Hi")
    assert media_of(opened.frontend) == []


async def test_a_picture_of_the_camera(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened, "Take a picture")
        await opened.page.get_by_role("button", name="Take a picture").click()
        await opened.page.get_by_role("button", name="Take the picture").click()
        await expect(opened.page.locator(".chip img")).to_be_visible()
        assert await opened.page.evaluate("document.querySelector('video').srcObject") is None
        await opened.ask("What is this?")
    [(kind, content)] = media_of(opened.frontend)
    assert kind == common_pb2.MODALITY_IMAGE
    assert content[:2] == b"\xff\xd8"  # JPEG


async def test_a_sound_of_the_microphone_is_sent_as_wav(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened, "Record sound")
        await opened.page.get_by_role("button", name="Record sound").click()
        await opened.page.get_by_role("button", name="Stop recording").wait_for()
        await opened.page.wait_for_timeout(400)  # the length of the recording
        await opened.page.get_by_role("button", name="Stop recording").click()
        await expect(opened.page.locator(".chip audio")).to_be_visible()
        await opened.ask("What do you hear?")
    [(kind, content)] = media_of(opened.frontend)
    assert kind == common_pb2.MODALITY_AUDIO
    with wave.open(BytesIO(content)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, 16000)
        assert sound.getnframes() > 1600


#: A page's script: the browser asks for permission, and the user has not answered yet. `allow()` answers.
ASKING = """() => {
    const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    const waiting = [];
    window.tracks = [];
    window.allow = () => waiting.forEach((resolve) => resolve());
    navigator.mediaDevices.getUserMedia = async (wanted) => {
        await new Promise((resolve) => waiting.push(resolve));
        const stream = await real(wanted);
        window.tracks.push(...stream.getTracks());
        return stream;
    };
}"""
#: Resolves when all cameras and microphones are off. Not wait_for_function, which the page's policy forbids.
UNTIL_OFF = """async () => {
    const areOff = () => window.tracks.length > 0 && window.tracks.every((track) => track.readyState === "ended");
    while (!areOff()) await new Promise((resolve) => setTimeout(resolve, 20));
}"""


async def until_off(opened: Opened) -> None:
    async with asyncio.timeout(10):
        await opened.page.evaluate(UNTIL_OFF)


async def test_a_camera_that_is_allowed_after_its_dialog_was_closed_is_off(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened, "Take a picture")
        await opened.page.evaluate(ASKING)
        await opened.page.get_by_role("button", name="Take a picture").click()
        await opened.page.get_by_role("button", name="Cancel").click()
        await opened.page.evaluate("window.allow()")
        await until_off(opened)


async def test_two_clicks_take_one_picture(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened, "Take a picture")
        await opened.page.get_by_role("button", name="Take a picture").click()
        take = opened.page.get_by_role("button", name="Take the picture")
        await expect(take).to_be_enabled()
        await take.evaluate("button => { button.click(); button.click(); }")
        await expect(opened.page.locator(".chip img")).to_be_visible()
        await opened.ask("What is this?")
    assert len(media_of(opened.frontend)) == 1


async def test_a_second_click_before_the_microphone_is_allowed_starts_no_second_recording(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened, "Record sound")
        await opened.page.evaluate(ASKING)
        microphone = opened.page.locator("#microphone")
        await microphone.click()
        await microphone.click()
        await opened.page.evaluate("window.allow()")
        await until_off(opened)
        await expect(microphone).to_have_attribute("aria-pressed", "false")


async def test_a_recording_can_be_ended_when_the_model_takes_no_sound_any_more(open_page: OpenPage) -> None:
    async with open_page() as opened:
        await until_able(opened, "Record sound")
        await opened.page.get_by_role("button", name="Record sound").click()
        stop = opened.page.get_by_role("button", name="Stop recording")
        await stop.wait_for()
        deaf = """async () => (await import("/playground/state.js")).change((state) => {
            state.models = state.models.map((model) => ({ ...model, triptych: { ...model.triptych, modalities: ["image"] } }));
        })"""
        await opened.page.evaluate(deaf)
        await stop.click()
        await expect(opened.page.get_by_role("button", name="Record sound")).to_have_attribute("aria-disabled", "true")
        await expect(opened.page.locator("#notice")).to_contain_text("does not take sound")


async def test_documents_are_read_by_any_model(open_page: OpenPage, tmp_path: Path) -> None:
    files = [
        {"name": "notes.py", "mimeType": "", "buffer": "x = 'é'".encode()},
        {"name": "paper.pdf", "mimeType": "application/pdf", "buffer": pdf("Of shapes")},
        {"name": "data.json", "mimeType": "application/json", "buffer": b"{}"},
    ]
    async with open_page(FakeFrontend()) as opened:
        await until_able(opened)
        await opened.page.locator("#files").set_input_files(files)
        await expect(opened.page.locator(".chip")).to_have_count(3)
        await opened.ask("What do they say?")
        await expect(opened.page.locator(".user .document")).to_have_text(["notes.py", "paper.pdf", "data.json"])
        async with opened.page.expect_download() as started:
            await opened.page.get_by_role("link", name="paper.pdf").click()
        await (await started.value).save_as(tmp_path / "paper.pdf")
    assert (tmp_path / "paper.pdf").read_bytes() == files[1]["buffer"]
    texts = [part.text for part in opened.frontend.request.messages[0].content]
    assert texts[0] == "<file name=\"notes.py\">\nx = 'é'\n</file>"
    assert "Of shapes" in texts[1]
    assert texts[2:] == ['<file name="data.json">\n{}\n</file>', "What do they say?"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"\xff\xfe\x00", "neither a picture"), (b"a\0b", "neither a picture")],
    ids=["empty", "other", "zero"],
)
async def test_a_file_that_nobody_reads_is_refused(open_page: OpenPage, content: bytes, said: str) -> None:
    async with open_page() as opened:
        await until_able(opened)
        file = {"name": "file.bin", "mimeType": "application/octet-stream", "buffer": content}
        await opened.page.locator("#files").set_input_files(file)
        await expect(opened.page.locator("#notice")).to_contain_text(f"file.bin {said}" if content == b"" else said)
        await expect(opened.page.locator(".chip")).to_have_count(0)


async def test_a_pdf_file_that_the_gateway_cannot_read_is_told(open_page: OpenPage) -> None:
    async with open_page(refusals=True) as opened:
        await until_able(opened)
        file = {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 nothing"}
        await opened.page.locator("#files").set_input_files(file)
        await opened.send("What does it say?")
        await expect(opened.page.locator(".assistant .error")).to_contain_text("broken.pdf")


async def test_a_message_is_not_sent_without_the_file_that_is_still_read(open_page: OpenPage) -> None:
    script = """() => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(8 << 20)], "large.png", { type: "image/png" }));
        const message = document.querySelector("#message");
        message.value = "What is this?";
        message.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
        document.querySelector("#composer").requestSubmit();
        return message.value;
    }"""
    async with open_page() as opened:
        await until_able(opened)
        assert await opened.page.evaluate(script) == "What is this?"
        await expect(opened.page.locator(".chip")).to_have_count(1)
        assert opened.frontend.requests == []
        await opened.ask("What is this?")
    assert len(media_of(opened.frontend)) == 1


async def test_a_sound_file_is_sent_as_it_is(open_page: OpenPage) -> None:
    content = BytesIO()
    with wave.open(content, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    async with open_page() as opened:
        await until_able(opened)
        file = {"name": "beep.wav", "mimeType": "audio/wav", "buffer": content.getvalue()}
        await opened.page.locator("#files").set_input_files(file)
        await expect(opened.page.locator(".chip audio")).to_be_visible()
        await opened.ask("What do you hear?")
    assert media_of(opened.frontend) == [(common_pb2.MODALITY_AUDIO, content.getvalue())]


async def test_what_the_model_does_not_take_is_off_and_says_why(open_page: OpenPage) -> None:
    async with open_page(FakeFrontend()) as opened:
        await opened.page.locator("#model option").first.wait_for(state="attached")
        for name, why in {
            "Take a picture": f"{MODEL.name} does not take images.",
            "Record sound": f"{MODEL.name} does not take sound.",
        }.items():
            button = opened.page.get_by_role("button", name=name)
            await expect(button).to_have_attribute("aria-disabled", "true")
            await expect(button).to_have_attribute("data-tip", why)
            await button.click(force=True)
        await expect(opened.page.locator("dialog[open]")).to_have_count(0)
        await by_paste(opened)
        await expect(opened.page.locator("#notice")).to_contain_text("does not take images")
        await expect(opened.page.locator(".chip")).to_have_count(0)
        await opened.show("Settings")
        await opened.page.locator("summary").get_by_text("Tools").click()
        await expect(opened.page.locator("#tools-why")).to_have_text(f"{MODEL.name} does not call tools.")
