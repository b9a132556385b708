"""EngineService with media over real gRPC: real scheduler, step loop and fetcher, an encoder and a runner that have no model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.builders.engine import GREEDY, traits
from support.drivers.engine_media import a_media_engine, chunks, holding
from support.fakes.runner import expected_output, seen
from support.waiting import until
from triptych.errors import Code, EmbeddingUnavailableError, InvalidRequestError
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2
from triptych_common.cluster import encoder as cluster_encoder
from triptych_engine.media.item import FetchOrder, Modality
from triptych_engine.rpc.convert_media import to_prompt_media

CAT, DOG = (b"cat", (6,)), (b"dog", (6,))
LOST = common_pb2.RequestError(code=Code.UNAVAILABLE, reason="SERVICE_UNAVAILABLE", message="the encoder was lost")


def alone(message: engine_pb2.EngineRequest) -> list[int]:
    media = to_prompt_media(message, list(message.prompt_token_ids), traits())
    return expected_output(seen(list(message.prompt_token_ids), media), replace(GREEDY, max_tokens=8))


async def test_embeddings_are_fetched_once_and_their_lease_ended():
    async with a_media_engine() as engine:
        holding(engine.encoder, b"cat")
        first, second = engine.message("a", [1, CAT, 2]), engine.message("b", [3, CAT, 4])
        first.media[0].lease_id = "lease"
        engine.encoder.fetch_gate = asyncio.Event()
        waiting = asyncio.create_task(engine.generate(first))
        await until(lambda: engine.encoder.counts["fetch"] == 1)
        engine.encoder.fetch_gate.set()
        answers = await asyncio.gather(waiting, engine.generate(second))
        assert [token_ids for token_ids, _ in answers] == [alone(first), alone(second)]
        assert engine.encoder.counts["fetch"] == 1
        await until(lambda: engine.encoder.released == ["lease"])
        fetch = answers[0][1].media[0]
        assert (fetch.source, fetch.num_bytes) == (common_pb2.EMBEDDING_SOURCE_ENCODER, 24)
        assert answers[1][1].media[0].source == common_pb2.EMBEDDING_SOURCE_ENGINE
        assert answers[1][1].usage.image_tokens == 6


async def test_text_flows_while_an_item_is_encoded():
    async with a_media_engine() as engine:
        holding(engine.encoder, b"cat")
        engine.encoder.fetch_gate = asyncio.Event()
        picture = engine.message("picture", [1, CAT, 2])
        waiting = asyncio.create_task(engine.generate(picture))
        await until(lambda: engine.encoder.counts["fetch"] == 1)
        text = engine.message("text", [1, 2, 3])
        assert (await engine.generate(text))[0] == alone(text)
        engine.encoder.fetch_gate.set()
        assert (await waiting)[0] == alone(picture)


async def test_a_lost_item_fails_its_request_and_no_other():
    async with a_media_engine() as engine:
        holding(engine.encoder, b"cat")
        kept = engine.message("kept", [1, CAT, 2])
        error, (token_ids, _) = await asyncio.gather(engine.failure(engine.message("lost", [1, CAT, DOG])), engine.generate(kept))
        assert isinstance(error, EmbeddingUnavailableError)
        assert error.field == "media[1]"
        assert "it is gone" in error.message
        assert token_ids == alone(kept)


async def test_an_encoder_that_is_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("triptych_engine.media.fetcher._CONNECT_WAIT_S", 0.3)
    async with a_media_engine(timeout_s=1) as engine:
        error = await engine.failure(engine.message("r", [1, CAT], address="127.0.0.1:1"))
        assert isinstance(error, EmbeddingUnavailableError)
        assert "127.0.0.1:1" in error.message
        error = await engine.failure(engine.message("r", [1, CAT], address=""))
        assert isinstance(error, EmbeddingUnavailableError)


async def test_an_encoder_whose_process_has_stopped_is_left_behind_soon(monkeypatch: pytest.MonkeyPatch):
    """Its connection stands. The embeddings are asked for elsewhere long before the fetch's own time is over."""
    monkeypatch.setattr(cluster_encoder, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(cluster_encoder, "_PROBE_TIMEOUT_S", 0.2)
    async with a_media_engine(timeout_s=60) as engine:
        holding(engine.encoder, b"cat")
        engine.encoder.fetch_gate = engine.encoder.answers = asyncio.Event()
        async with asyncio.timeout(5):
            error = await engine.failure(engine.message("a", [1, CAT, 2]))
        assert isinstance(error, EmbeddingUnavailableError)
        assert "does not even say who it is" in error.message
        engine.encoder.answers.set()


async def test_an_encoder_that_takes_long_and_says_who_it_is_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_encoder, "_PATIENCE_S", 0.05)
    async with a_media_engine(timeout_s=60) as engine:
        holding(engine.encoder, b"cat")
        engine.encoder.fetch_gate = asyncio.Event()
        message = engine.message("a", [1, CAT, 2])
        waiting = asyncio.create_task(engine.generate(message))
        await asyncio.sleep(0.4)
        assert not waiting.done()
        engine.encoder.fetch_gate.set()
        assert (await waiting)[0] == alone(message)


async def test_an_item_that_cannot_be_encoded_keeps_its_own_error():
    async with a_media_engine() as engine:
        key = b"cat".ljust(32, b".")
        bad = common_pb2.RequestError(code=Code.INVALID_ARGUMENT, reason="INVALID_REQUEST", message="the image is truncated")
        engine.encoder.fetches[key] = [encoder_pb2.FetchResponse(key=key, error=bad)]
        error = await engine.failure(engine.message("r", [1, CAT]))
        assert isinstance(error, InvalidRequestError)
        assert (error.field, error.message) == ("media[0]", "media[0]: the image is truncated")


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (chunks(b"cat", shape=(5, 1)), r"embeds is float32 \[5, 1\], not floating-point \[6, 1\]"),
        (chunks(b"cat", shape=(6, 2)), r"embeds is float32 \[6, 2\]"),
        (chunks(b"cat")[1:], "embeds came without its header"),
        (chunks(b"cat")[:1], "embeds ended early"),
        ([chunks(b"cat")[0], encoder_pb2.FetchResponse(key=b"cat".ljust(32, b"."), error=LOST)], "the encoder was lost"),
        (chunks(b"cat", num_tokens=7), "embeds is longer than its shape says"),
        (chunks(b"cat")[2:], "embeds is missing"),
        ([encoder_pb2.FetchResponse(tensor_name="deepstack.0"), *chunks(b"cat")], "deepstack.0"),
    ],
)
async def test_what_is_not_the_item_is_not_used(sent: list[encoder_pb2.FetchResponse], what: str):
    """vllm-project/vllm #52234: a transfer that had failed was computed on, and the answer was 200 with wrong tokens."""
    async with a_media_engine() as engine:
        engine.encoder.fetches[b"cat".ljust(32, b".")] = sent
        error = await engine.failure(engine.message("r", [1, CAT]))
        assert isinstance(error, EmbeddingUnavailableError)
        with pytest.raises(EmbeddingUnavailableError, match=what):
            raise error


async def test_numbers_that_are_not_finite_stay_out_of_the_engine():
    async with a_media_engine() as engine:
        sent = chunks(b"cat")
        sent[1].data = b"\x00\x00\x80\x7f" * 4 + sent[1].data[16:]
        sent[0].data, sent[1].data = (sent[0].data + sent[1].data)[:8], b"\x00\x00\x80\x7f" * 4
        engine.encoder.fetches[b"cat".ljust(32, b".")] = sent
        error = await engine.failure(engine.message("r", [1, CAT]))
        assert error.code == Code.INTERNAL
        assert "not finite" in error.message


async def test_nobody_left_who_wants_an_item_ends_its_fetch():
    async with a_media_engine() as engine:
        engine.encoder.fetch_gate = asyncio.Event()
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=engine.message("r", [1, CAT])))
        waiting = asyncio.create_task(call.read())
        await until(lambda: engine.encoder.counts["fetch"] == 1)
        call.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: engine.encoder.counts["cancelled"] == 1)


async def test_an_order_that_is_given_up_at_once_leaves_nothing() -> None:
    async with a_media_engine() as served:
        order = FetchOrder(1_000_000, b"k" * 32, served.encoder_id, "", 6, Modality.IMAGE)
        served.fetcher.submit([order], [order.number])
        await asyncio.sleep(0.05)
        assert not served.fetcher._tasks
        assert not served.encoder.counts["fetch"]


async def test_a_fetch_from_an_encoder_whose_address_is_gone_fails_instead_of_waiting_for_ever():
    async with a_media_engine() as engine:
        holding(engine.encoder, b"cat")
        engine.encoder.fetch_gate = asyncio.Event()
        failing = asyncio.create_task(engine.failure(engine.message("a", [1, CAT, 2])))
        await until(lambda: engine.encoder.counts["fetch"] == 1)
        engine.fetcher._encoders._set_addresses(())
        error = await failing
        assert isinstance(error, EmbeddingUnavailableError)
        assert error.field == "media[0]"
