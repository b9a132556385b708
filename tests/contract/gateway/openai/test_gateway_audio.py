"""The official OpenAI client sends audio files for transcription and translation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_type_hints

import httpx2
import openai
import pytest
from openai.types.audio import transcription_create_params, translation_create_params
from support.builders.media_files import sound
from support.fakes.frontend import MODEL, FakeFrontend, Script, fails, text_deltas
from support.fakes.gateway import gateway_app, gateway_client, gateway_server
from triptych.errors import InvalidRequestError, ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.audio.schema import TranscriptionRequest, TranslationRequest
from triptych_gateway.wire.schema import NoOp

WAV = sound()
FILE = ("speech.wav", WAV)
ROUTE = "/v1/audio/transcriptions"
USAGE = common_pb2.Usage(prompt_tokens=30, audio_tokens=20, completion_tokens=4)


@asynccontextmanager
async def async_client(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with gateway_app(frontend, **settings) as app:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
        async with openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="key", max_retries=0, http_client=http) as client:
            yield client


def chat_of(frontend: FakeFrontend) -> generation_pb2.ChatRequest:
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    return frontend.request


async def form(frontend: FakeFrontend, path: str = ROUTE, **fields: Any) -> Any:
    data = {"model": MODEL.name} | fields
    async with gateway_client(frontend) as client:
        return await client.post(
            path, data={name: value for name, value in data.items() if value is not None}, files={"file": FILE}
        )


async def test_a_transcription() -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas("Hel", "lo.")], USAGE)
    async with async_client(frontend) as client:
        answer = await client.audio.transcriptions.create(model=MODEL.name, file=FILE)
    assert answer.text == "Hello."
    assert answer.usage is not None
    assert answer.usage.to_dict() == {
        "type": "tokens",
        "input_tokens": 30,
        "output_tokens": 4,
        "total_tokens": 34,
        "input_token_details": {"audio_tokens": 20, "text_tokens": 10},
    }
    (turn,) = chat_of(frontend).messages
    media, text = turn.content
    assert (turn.role, media.media.data, media.media.format) == ("user", WAV, "wav")
    assert media.media.modality == common_pb2.MODALITY_AUDIO
    assert text.text.startswith("Transcribe the speech")
    assert chat_of(frontend).options.sampling.temperature == 0
    assert chat_of(frontend).options.sampling.HasField("temperature")


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_a_translation() -> None:
    frontend = FakeFrontend()
    async with async_client(frontend) as client:
        answer = await client.audio.translations.create(model=MODEL.name, file=FILE, prompt="A lecture.", temperature=0.5)
        plain = await client.audio.translations.create(model=MODEL.name, file=FILE, response_format="text")
    assert answer.text == plain == "Hello"
    instruction = frontend.requests[0].messages[0].content[1].text  # type: ignore[union-attr]
    assert "English" in instruction
    assert instruction.endswith("A lecture.")
    assert frontend.requests[0].options.sampling.temperature == 0.5


async def test_plain_text() -> None:
    response = await form(FakeFrontend(), response_format="text")
    assert (response.text, response.headers["content-type"]) == ("Hello", "text/plain; charset=utf-8")


async def test_a_stream() -> None:
    frontend = FakeFrontend()
    thinks = generation_pb2.ChoiceDelta(reasoning="A voice.")
    frontend.script = Script([[thinks, *text_deltas("Hel", "lo.")]], USAGE)
    async with async_client(frontend) as client:
        stream = await client.audio.transcriptions.create(model=MODEL.name, file=FILE, stream=True)
        *deltas, done = [event async for event in stream]
    assert [event.delta for event in deltas] == ["Hel", "lo."]  # type: ignore[union-attr]
    assert done.type == "transcript.text.done"
    assert done.text == "Hello."
    assert done.usage is not None
    assert done.usage.total_tokens == 34


async def test_the_bytes_of_a_stream() -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas("Hi")], USAGE)
    response = await form(frontend, stream="true")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text == (
        'data: {"type":"transcript.text.delta","delta":"Hi"}\n\n'
        'data: {"type":"transcript.text.done","text":"Hi","usage":{"type":"tokens","input_tokens":30,"output_tokens":4,'
        '"total_tokens":34,"input_token_details":{"audio_tokens":20,"text_tokens":10}}}\n\n'
    )


async def test_logprobs() -> None:
    frontend = FakeFrontend()
    entry = generation_pb2.TokenLogprob(token="Hi", utf8=b"Hi", logprob=-0.5)
    frontend.script = Script(
        [[generation_pb2.ChoiceDelta(text="Hi", logprobs=[entry], finish_reason=common_pb2.FINISH_REASON_STOP)]]
    )
    expected = [{"token": "Hi", "bytes": [72, 105], "logprob": -0.5}]
    async with async_client(frontend) as client:
        whole = await client.audio.transcriptions.create(model=MODEL.name, file=FILE, include=["logprobs"])
        stream = await client.audio.transcriptions.create(model=MODEL.name, file=FILE, include=["logprobs"], stream=True)
        delta, done = [event async for event in stream]
    assert whole.logprobs is not None
    for logprobs in (whole.logprobs, delta.logprobs, done.logprobs):  # type: ignore[union-attr]
        assert [item.to_dict() for item in logprobs or ()] == expected
    assert chat_of(frontend).options.sampling.HasField("logprobs")


async def test_the_synchronous_client() -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend) as (host, port):

        def ask() -> tuple[str, list[str]]:
            with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="key", max_retries=0) as client:
                whole = client.audio.transcriptions.create(model=MODEL.name, file=FILE)
                stream = client.audio.transcriptions.create(model=MODEL.name, file=FILE, stream=True)
                return whole.text, [event.type for event in stream]

        text, kinds = await asyncio.to_thread(ask)
    assert text == "Hello"
    assert kinds == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"]


async def test_a_large_file_is_uploaded() -> None:
    frontend = FakeFrontend()
    content = WAV + bytes(500_000)
    async with async_client(frontend) as client:
        await client.audio.transcriptions.create(model=MODEL.name, file=("x.bin", content))
    item = chat_of(frontend).messages[0].content[0].media
    assert frontend.uploads[item.upload_id] == content
    assert not item.HasField("format")


async def test_a_file_that_is_too_large() -> None:
    async with async_client(FakeFrontend(), max_body_bytes=4096) as client:
        with pytest.raises(openai.APIStatusError, match="larger than 4096 bytes") as raised:
            await client.audio.transcriptions.create(model=MODEL.name, file=FILE)
    assert raised.value.status_code == 413


async def test_errors() -> None:
    frontend = FakeFrontend()
    field = "messages[0].content[0].media"
    frontend.script = fails(InvalidRequestError(f"{field}: the model takes no audio", field=field))
    async with async_client(frontend) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.audio.transcriptions.create(model=MODEL.name, file=FILE)
        assert (raised.value.param, raised.value.body["message"]) == ("file", "file: the model takes no audio")  # type: ignore[index]
        with pytest.raises(openai.NotFoundError) as missing:
            await client.audio.transcriptions.create(model="whisper-1", file=FILE)
        assert missing.value.code == "model_not_found"
        frontend.script = fails(ServiceUnavailableError("away"), after=1)
        stream = await client.audio.transcriptions.create(model=MODEL.name, file=FILE, stream=True)
        with pytest.raises(openai.APIError, match="away"):
            _ = [event async for event in stream]


#: Field -> its values in the form, and what the frontend gets.
HONOURED: dict[str, tuple[Any, Callable[[generation_pb2.ChatRequest], bool]]] = {
    "model": (MODEL.name, lambda chat: chat.model == MODEL.name),
    "prompt": ("About birds.", lambda chat: "About birds." in chat.messages[0].content[1].text),
    "temperature": ("0.25", lambda chat: chat.options.sampling.temperature == 0.25),
    "language": ("fr", lambda chat: "Language of the audio: fr." in chat.messages[0].content[1].text),
    "languages[]": (["fr", "de"], lambda chat: "fr or de" in chat.messages[0].content[1].text),
    "keywords[]": (["Kea", "Kakapo"], lambda chat: "Kea, Kakapo" in chat.messages[0].content[1].text),
    "keywords": ("Kea", lambda chat: "Kea" in chat.messages[0].content[1].text),
    "response_format": ("json", lambda chat: True),
    "chunking_strategy": ("auto", lambda chat: True),
    "include[]": ("logprobs", lambda chat: chat.options.sampling.HasField("logprobs")),
    "stream": ("false", lambda chat: True),
}
#: Field -> a value that is refused, and what the error says.
REFUSED = {
    "response_format": ("diarized_json", "response_format: diarized_json needs speakers, which are not told apart"),
    "timestamp_granularities[]": ("word", "timestamp_granularities[0]: no model here gives the times of words"),
    "chunking_strategy": ("server_vad", "chunking_strategy: "),
    "chunking_strategy[type]": ("server_vad", "chunking_strategy[type]: unknown field"),
    "known_speaker_names[]": ("a", "known_speaker_names: not supported"),
    "known_speaker_references[]": ("data:audio/wav;base64,AA", "known_speaker_references: not supported"),
    "temperature": ("warm", "temperature: should be a valid number"),
    "stream": ("perhaps", "stream: should be a valid boolean"),
    "language": ("f\nr", "language: "),
    "temprature": ("1", "temprature: unknown field"),
}


def test_the_tables_name_every_field() -> None:
    # test_gateway_audio_pieces.py has timestamp_granularities.
    named = {name.removesuffix("[]") for name in HONOURED} | {"file", "timestamp_granularities"}
    refused = {name for name, info in TranscriptionRequest.model_fields.items() if any(isinstance(m, NoOp) for m in info.metadata)}
    assert set(TranscriptionRequest.model_fields) == named | refused
    assert refused <= {name.removesuffix("[]") for name in REFUSED}


@pytest.mark.parametrize(
    ("params", "schema"),
    [
        (transcription_create_params.TranscriptionCreateParamsNonStreaming, TranscriptionRequest),
        (transcription_create_params.TranscriptionCreateParamsStreaming, TranscriptionRequest),
        (translation_create_params.TranslationCreateParams, TranslationRequest),
    ],
)
def test_no_field_of_the_client_is_unknown(params: Any, schema: Any) -> None:
    assert get_type_hints(params).keys() <= schema.model_fields.keys()


@pytest.mark.parametrize("field", HONOURED)
async def test_honoured(field: str) -> None:
    value, shows = HONOURED[field]
    frontend = FakeFrontend()
    response = await form(frontend, **{field: value})
    assert response.status_code == 200, response.text
    assert shows(chat_of(frontend))


@pytest.mark.parametrize("field", REFUSED)
async def test_refused(field: str) -> None:
    value, said = REFUSED[field]
    response = await form(FakeFrontend(), **{field: value})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": None}, "model: this field is required"),
        ({"include": "logprobs", "response_format": "text"}, "include: only allowed with the response_format json"),
        ({"include": "logprobs", "response_format": "verbose_json"}, "include: only allowed with the response_format json"),
        (
            {"timestamp_granularities[]": "segment"},
            "timestamp_granularities: only allowed with the response_format verbose_json",
        ),
        (
            {"stream": "true", "response_format": "srt"},
            "stream: not allowed with the response_format srt, which is sent whole",
        ),
        ({"language": "fr", "languages": ["de"]}, "languages: not allowed together with language"),
        ({"prompt": ["a", "b"]}, "the form has the field 'prompt' twice"),
    ],
)
async def test_fields_that_do_not_fit(fields: dict[str, Any], said: str) -> None:
    response = await form(FakeFrontend(), **fields)
    assert (response.status_code, response.json()["error"]["message"]) == (400, said)


async def test_what_a_model_that_only_writes_down_speech_is_told() -> None:
    frontend = FakeFrontend()
    await form(frontend, language="de", prompt="A lecture.")
    await form(frontend, **{"languages[]": ["de", "fr"], "keywords[]": ["Triptych", "vLLM"]}, prompt="A lecture.")
    await form(frontend)
    await form(frontend, "/v1/audio/translations", prompt="A lecture.")
    Told = generation_pb2.Transcription  # noqa: N806
    assert [request.transcription for request in frontend.requests] == [  # type: ignore[union-attr]
        Told(languages=["de"], prompt="A lecture."),
        Told(languages=["de", "fr"], prompt="Triptych, vLLM A lecture."),
        Told(),
        Told(translate=True, prompt="A lecture."),
    ]
    assert chat_of(frontend).HasField("transcription")
