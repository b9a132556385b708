"""What a client can make the mock hold, and errors that it sends as the script has them."""

from collections.abc import AsyncIterator

import grpc
import pytest
from support.mock import mock_server, script
from triptych import AsyncClient
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError, TriptychError
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_mock import vocabulary as vocabulary_module
from triptych_mock.rpc.seen import CallLog
from triptych_mock.vocabulary import Vocabulary

UploadRequest = generation_pb2.UploadMediaRequest


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with mock_server() as mock:
        yield mock.address


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 8, "reason": "OUT_OF_COFFEE", "message": "later"}, QueueFullError),
        ({"code": 9, "message": "not now"}, ServiceUnavailableError),
        ({"code": 15, "reason": "LOST"}, TriptychError),
    ],
)
async def test_an_error_has_the_code_and_reason_of_the_script(address: str, error: dict, kind: type[TriptychError]) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(kind) as caught:
            await client.chat(script(fault={"error": error}))
    assert (caught.value.code, caught.value.has_details) == (error["code"], True)
    assert caught.value.reason == error.get("reason", "SERVICE_UNAVAILABLE")


@pytest.mark.parametrize("error", [{"code": 0}, {"code": 99}, {"code": 8, "retryAfterS": "NaN"}, {"code": 8, "retryAfterS": -1}])
async def test_an_error_that_is_none_is_refused(address: str, error: dict) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(InvalidRequestError, match=r"mock\.fault\.error"):
            await client.chat(script(fault={"error": error}))


async def test_a_text_that_is_nested_too_deeply_for_json_is_a_text(address: str) -> None:
    text = '{"a": ' * 50_000
    async with AsyncClient(address) as client:
        assert (await client.chat(text)).choices[0].text == text


async def test_an_answer_has_a_largest_size(address: str) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(InvalidRequestError, match="token_bytes"):
            await client.chat(script(numTokens=1_000_000, tokenBytes=1 << 20))


@pytest.mark.parametrize("field", ["tokenS", "firstTokenS"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", -1])
async def test_times_are_numbers(address: str, field: str, value: object) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(InvalidRequestError, match="token_s"):
            await client.chat(script(**{field: value}, numTokens=2))


async def test_uploads_have_ids_of_their_own_and_end_at_their_length(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel, AsyncClient(address) as client:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        async def upload(content: bytes) -> str:
            header = generation_pb2.UploadMediaHeader(num_bytes=len(content))
            return (await stub.UploadMedia(iter([UploadRequest(header=header), UploadRequest(data=content)]))).upload_id

        async def use(upload_id: str) -> None:
            await client.chat("a", images=[common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, upload_id=upload_id)])

        first, second = await upload(b"a"), await upload(b"b")
        await use(first)
        again = await upload(b"b")
        await use(second)
        await use(again)

        async def endless() -> AsyncIterator[UploadRequest]:
            yield UploadRequest(header=generation_pb2.UploadMediaHeader(num_bytes=3))
            while True:
                yield UploadRequest(data=b"abcd")

        with pytest.raises(grpc.aio.AioRpcError, match="3 bytes; 4 came"):
            await stub.UploadMedia(endless())


async def test_an_eviction_of_nothing_is_not_told(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = encoder_pb2_grpc.EncoderServiceStub(channel)
        await stub.Encode(encoder_pb2.EncodeRequest(items=[encoder_pb2.EncodeItem(key=b"held", data=b"a")]))
        watch = stub.WatchEvictions(encoder_pb2.WatchEvictionsRequest())
        await watch.initial_metadata()
        await stub.Evict(encoder_pb2.EvictRequest(keys=[b"unknown"]))
        await stub.Evict(encoder_pb2.EvictRequest(keys=[b"held"]))
        assert list((await watch.read()).keys) == [b"held"]
        watch.cancel()


async def test_ten_thousand_calls_are_remembered_whatever_their_ids() -> None:
    log = CallLog()
    for number in range(12_000):
        with log.begin(f"id-{number % 300}", mock_pb2.SeenCall()) as seen:
            assert seen.num_earlier == number // 300
    remembered = [
        len((await log.GetCalls(mock_pb2.GetCallsRequest(request_id=f"id-{number}"), None)).calls) for number in range(300)
    ]
    assert sum(remembered) == 10_000
    assert min(remembered) > 0


def test_words_that_do_not_fit_into_the_vocabulary_become_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_module, "_MAX_CHARS", 8 << 10)
    vocabulary = Vocabulary()
    large = [chr(ord("a") + number) * (1 << 10) for number in range(12)]
    for word in large:
        assert vocabulary.decode(vocabulary.encode(word)) == word
    assert [len(vocabulary.encode(word)) > 1 for word in large] == [False] * 8 + [True] * 4
    assert len(vocabulary.encode("short")) == 5
