"""Files that are cut into pieces: because they are long, or because the answer has times."""

from __future__ import annotations

import asyncio
import importlib.util
import io
from typing import Any

import httpx
import openai
import psutil
import pytest
import soundfile
from support.builders.media_files import sound, talk
from support.fakes.frontend import MODEL, FakeFrontend, Script, fails, says, text_deltas
from support.fakes.gateway import gateway_client, gateway_server
from support.sdk import openai_client, sync_openai_client
from support.waiting import until
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.audio import cutting
from triptych_gateway.file_process import Limits

USAGE = common_pb2.Usage(prompt_tokens=30, audio_tokens=20, completion_tokens=4)
#: Three pieces for times.
TALK = talk(4, 7, 5)
WORDS = {4: "One.", 7: "Two.", 5: "Three."}
#: Three pieces for a text.
LONG = talk(25, 24, 26)


def sent(frontend: FakeFrontend, request: Any) -> bytes:
    """The sound of a call."""
    item = request.messages[0].content[0].media
    assert item.format == "wav"
    return frontend.uploads[item.upload_id] if item.upload_id else item.data


def seconds(frontend: FakeFrontend, request: Any) -> float:
    info = soundfile.info(io.BytesIO(sent(frontend, request)))
    assert (info.samplerate, info.channels, info.subtype) == (16_000, 1, "PCM_16")
    return float(info.duration)


def transcriber(**script: Any) -> FakeFrontend:
    """Says which piece it was given, in two deltas."""
    frontend = FakeFrontend()

    def play(request: Any) -> Script:
        text = WORDS[round(seconds(frontend, request) - 0.4)]
        return says(text[:2], text[2:], usage=USAGE, **script)

    frontend.script = play
    return frontend


async def test_verbose_json() -> None:
    frontend = transcriber()
    async with openai_client(frontend) as client:
        answer = await client.audio.transcriptions.create(
            model=MODEL.name,
            file=("a.wav", TALK),
            language="fr",
            response_format="verbose_json",
            timestamp_granularities=["segment"],
        )
    assert (answer.text, answer.language, float(answer.duration)) == ("One. Two. Three.", "fr", 18.0)
    assert answer.segments is not None
    times = [(one.start, one.end, one.text) for one in answer.segments]
    expected = [(0, 4, "One."), (5, 12, "Two."), (13, 18, "Three.")]
    assert times == [(pytest.approx(start, abs=0.05), pytest.approx(end, abs=0.05), text) for start, end, text in expected]
    assert answer.usage is not None
    assert answer.usage.seconds == 18
    assert all(request.options.return_token_ids for request in frontend.requests)
    assert all(request.options.sampling.HasField("logprobs") for request in frontend.requests)
    assert len(set(frontend.request_ids)) == 3


async def test_subtitles() -> None:
    async with openai_client(transcriber()) as client:
        ask = client.audio.transcriptions.create
        srt = await ask(model=MODEL.name, file=("a.wav", TALK), response_format="srt")
        vtt = await ask(model=MODEL.name, file=("a.ogg", talk(4, 7, 5, kind="OGG")), response_format="vtt")
    assert [line for line in srt.splitlines() if line and "-->" not in line] == ["1", "One.", "2", "Two.", "3", "Three."]
    assert srt.startswith("1\n00:00:00,000 --> 00:00:0")
    assert [line for line in vtt.splitlines() if line and "-->" not in line] == ["WEBVTT", "One.", "Two.", "Three."]


@pytest.mark.parametrize(("kind", "content_type"), [("srt", "text/plain"), ("vtt", "text/vtt")])
async def test_a_translation_with_times(kind: str, content_type: str) -> None:
    frontend = transcriber()
    async with gateway_client(frontend) as client:
        form = {"model": MODEL.name, "response_format": kind}
        response = await client.post("/v1/audio/translations", data=form, files={"file": ("a.wav", TALK)})
    assert response.headers["content-type"] == f"{content_type}; charset=utf-8"
    assert response.text.count("-->") == 3
    assert all("English" in request.messages[0].content[1].text for request in frontend.requests)  # type: ignore[union-attr]


async def test_a_long_file_is_cut_in_its_pauses() -> None:
    frontend = FakeFrontend()
    frontend.script = lambda request: says(f" {seconds(frontend, request):.0f}", " s ", usage=USAGE)
    async with openai_client(frontend) as client:
        answer = await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", LONG))
        text = await client.audio.transcriptions.create(
            model=MODEL.name, file=("a.flac", talk(25, 24, 26, kind="FLAC")), response_format="text"
        )
    assert answer.text == text == "25 s 24 s 26 s"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (90, 12, 102)  # type: ignore[union-attr]


@pytest.mark.parametrize("length", [30.015, 30.019])
async def test_a_piece_is_no_longer_than_what_models_take(length: float) -> None:
    """Files of thirty seconds are a little longer in some formats. Whisper refuses more."""
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        files = {"file": ("a.wav", talk(length))}
        assert (await client.post("/v1/audio/transcriptions", data={"model": MODEL.name}, files=files)).status_code == 200
    lengths = [seconds(frontend, request) for request in frontend.requests]
    assert max(lengths) <= 30.0
    assert sum(lengths) == pytest.approx(length, abs=0.02)


async def test_a_file_of_thirty_seconds_is_sent_as_it_is() -> None:
    frontend, content = FakeFrontend(), talk(14, 15, kind="OGG")
    async with gateway_client(frontend) as client:
        files = {"file": ("a.ogg", content)}
        assert (await client.post("/v1/audio/transcriptions", data={"model": MODEL.name}, files=files)).status_code == 200
    (request,) = frontend.requests
    item = request.messages[0].content[0].media  # type: ignore[union-attr]
    assert (item.format, frontend.uploads.get(item.upload_id) or item.data) == ("ogg", content)


async def test_a_stream_tells_the_pieces_in_their_order() -> None:
    frontend, first = FakeFrontend(), asyncio.Semaphore(0)

    def play(request: Any) -> Script:
        name = f"{seconds(frontend, request):.0f}"
        return says(f" {name}", " s. ", usage=USAGE, gate=first if name == "25" else None)

    frontend.script = play
    async with openai_client(frontend) as client:
        stream = await asyncio.gather(
            client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", LONG), stream=True), opened(frontend, first)
        )
        *deltas, done = [event async for event in stream[0]]
    assert [event.delta for event in deltas] == [" 25", " s. ", "24", " s. ", "26", " s. "]  # type: ignore[union-attr]
    assert done.text == " 25 s. 24 s. 26 s. "  # type: ignore[union-attr]
    assert done.usage.total_tokens == 102  # type: ignore[union-attr]


async def opened(frontend: FakeFrontend, gate: asyncio.Semaphore) -> None:
    """Let the first piece go on when the others have ended."""
    await until(lambda: len(frontend.requests) == 3 and frontend.num_live == 1)
    for _ in range(9):
        gate.release()


async def test_the_log_probabilities_of_all_pieces() -> None:
    frontend = FakeFrontend()
    entry = generation_pb2.TokenLogprob(token="Hi", utf8=b"Hi", logprob=-0.5)
    stop = common_pb2.FINISH_REASON_STOP
    frontend.script = Script([[generation_pb2.ChoiceDelta(text="Hi", logprobs=[entry], finish_reason=stop)]])
    async with openai_client(frontend) as client:
        ask: Any = client.audio.transcriptions.create
        whole = await ask(model=MODEL.name, file=("a.wav", LONG), include=["logprobs"])
        events = [event async for event in await ask(model=MODEL.name, file=("a.wav", LONG), include=["logprobs"], stream=True)]
    assert (whole.text, len(whole.logprobs)) == ("Hi Hi Hi", 3)
    assert [event.delta for event in events[:-1]] == ["Hi", " Hi", " Hi"]
    assert len(events[-1].logprobs) == 3


async def test_an_error_of_one_piece_ends_the_request() -> None:
    frontend = FakeFrontend()
    error = ServiceUnavailableError("the engine is lost")
    forever = asyncio.Semaphore(0)

    def play(request: Any) -> Script:
        is_last = round(seconds(frontend, request)) == 26
        return fails(error) if is_last else says("a", gate=forever)

    frontend.script = play
    async with openai_client(frontend) as client:
        with pytest.raises(openai.InternalServerError, match="the engine is lost") as raised:
            await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", LONG))
        assert raised.value.status_code == 503
        await until(lambda: frontend.num_live == 0)
        frontend.script = lambda request: fails(error, after=1) if round(seconds(frontend, request)) == 25 else says("b")
        stream = await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", LONG), stream=True)
        with pytest.raises(openai.APIError, match="the engine is lost"):
            _ = [event async for event in stream]


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a_client_that_leaves_ends_all_pieces(stream: str) -> None:
    frontend = transcriber(gate=asyncio.Semaphore(0))
    frontend.script = lambda request: says("a", gate=asyncio.Semaphore(0))
    async with gateway_server(frontend) as (host, port), httpx.AsyncClient() as client:
        form = {"model": MODEL.name, "stream": stream}
        url = f"http://{host}:{port}/v1/audio/transcriptions"
        asked = asyncio.create_task(client.post(url, data=form, files={"file": ("a.wav", LONG)}))
        await until(lambda: frontend.num_live == 3)
        asked.cancel()
        await until(lambda: frontend.num_live == 0)


async def test_a_client_that_leaves_ends_the_cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    from triptych_gateway.apis.audio import cutting

    monkeypatch.setattr(cutting, "_COMMAND", ("-c", "'a cutter'; import time; time.sleep(60)"))

    def is_cutter(process: psutil.Process) -> bool:
        try:
            return "'a cutter'" in " ".join(process.cmdline())
        except psutil.Error:  # it has ended
            return False

    def cutters() -> list[psutil.Process]:
        return list(filter(is_cutter, psutil.Process().children()))

    async with gateway_server(FakeFrontend()) as (host, port), httpx.AsyncClient() as client:
        url = f"http://{host}:{port}/v1/audio/transcriptions"
        asked = asyncio.create_task(client.post(url, data={"model": MODEL.name}, files={"file": ("a.wav", LONG)}))
        await until(lambda: bool(cutters()))
        asked.cancel()
        await until(lambda: not cutters())


async def test_few_pieces_run_at_the_same_time() -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = lambda request: says("a", usage=USAGE, gate=gate)
    many = talk(*[6.0] * 20, rate=8000)
    async with openai_client(frontend) as client:
        asked = asyncio.create_task(
            client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", many), response_format="srt")
        )
        await until(lambda: frontend.num_live == 16)
        await asyncio.sleep(0.1)
        assert frontend.num_live == 16
        for _ in range(100):
            gate.release()
        answer = await asked
    assert (answer.count("-->"), len(frontend.requests)) == (20, 20)


async def test_the_synchronous_client_reads_subtitles() -> None:
    async with sync_openai_client(transcriber()) as client:
        answer = await asyncio.to_thread(
            client.audio.transcriptions.create, model=MODEL.name, file=("a.wav", TALK), response_format="srt"
        )
    assert "Three." in answer


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no sound at all", "it is no sound of a known format, or damaged"),
        (sound()[:44], "it has no samples"),
    ],
)
async def test_files_that_cannot_be_cut(content: bytes, said: str) -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", content), response_format="srt")
        assert f"file: cannot be cut into pieces: {said}" in raised.value.message
        assert raised.value.param == "file"
        assert not frontend.requests
        # For a text, the frontend says what is wrong with the file.
        await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", content + bytes(40_000)))
    assert len(frontend.requests) == 1


#: The process that cuts, for a file of three hours, which would take the test too long.
TOO_LONG = """
import sys
from triptych_gateway.file_process import Limits, TooLargeError, serve_file
def cut(content):
    raise TooLargeError("it is longer than 7200 s")
sys.exit(serve_file(cut, Limits(60.0, 2 << 30)))
"""


async def test_a_file_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    # The models would say that they take 30 seconds at most, which is not what is wrong.
    monkeypatch.setattr(cutting, "_COMMAND", ("-c", TOO_LONG))
    frontend = FakeFrontend()
    async with openai_client(frontend) as client:
        with pytest.raises(openai.BadRequestError, match=r"file: cannot be cut into pieces: it is longer than 7200 s"):
            await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", talk(20.0, 20.0)))
    assert not frontend.requests


async def test_a_gateway_that_has_no_time_to_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_LIMITS", Limits(0.01, 2 << 30))
    frontend = FakeFrontend()
    async with openai_client(frontend) as client:
        with pytest.raises(openai.InternalServerError, match=r"file: it was not read within 0\.02 s; try again later") as raised:
            await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", talk(20.0, 20.0)))
    assert raised.value.status_code == 503
    assert not frontend.requests


async def test_a_gateway_that_cannot_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    frontend = FakeFrontend()
    async with openai_client(frontend) as client:
        with pytest.raises(openai.BadRequestError, match=r"NumPy is not installed \(triptych-server\[speech\]\)"):
            await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", TALK), response_format="vtt")
        await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", LONG))
    assert len(frontend.requests) == 1


async def test_thoughts_are_no_subtitles() -> None:
    frontend = FakeFrontend()
    thinks = generation_pb2.ChoiceDelta(reasoning="A voice.")
    frontend.script = Script([[thinks, *text_deltas("Hi.")]], USAGE)
    async with openai_client(frontend) as client:
        answer = await client.audio.transcriptions.create(model=MODEL.name, file=("a.wav", sound(32_000)), response_format="vtt")
    assert answer == "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nHi.\n"
