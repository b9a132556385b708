"""Long prompts go to engines that compute prompts, and on to engines that decode with their first token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.drivers.engine_router import Engine, Heard, a_request, engines
from support.waiting import until
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster import connection as connection_module
from triptych_common.model.blocks import prefix_ids
from triptych_frontend.engines.policy import Routing, demand_of
from triptych_frontend.engines.router import EngineRouter

_SIZE = 16
_LONG = [*range(1, 1000)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.001)


def asks(num_tokens: int, name: str = "r", n: int = 1) -> engine_pb2.EngineRequest:
    request = a_request(name, n=n)
    request.prompt_token_ids.extend(_LONG[:num_tokens])
    request.sampling.max_tokens = 100
    return request


def give_role(engine: Engine, role: common_pb2.KvRole, num_free_blocks: int = 1000) -> None:
    model = common_pb2.ModelInfo()
    model.CopyFrom(engine.model)  # that of all engines
    model.capabilities.kv_role, engine.model = role, model
    engine.reported_load.num_free_blocks, engine.reported_load.block_size = num_free_blocks, _SIZE
    engine.blocks.update(engine_pb2.WatchBlocksResponse(sequence=1, is_whole=True, block_size=_SIZE))


@asynccontextmanager
async def roles() -> AsyncIterator[tuple[EngineRouter, Engine, Engine]]:
    """A router, the engine that computes prompts, and the one that decodes."""
    async with engines("prefill:1", "decode:1") as (router, made, _):
        give_role(made["prefill:1"], common_pb2.KV_ROLE_PREFILL)
        give_role(made["decode:1"], common_pb2.KV_ROLE_DECODE)
        yield router, made["prefill:1"], made["decode:1"]


@pytest.mark.parametrize("routing", ["prefix", "least-load", "round-robin"])
async def test_long_prompts_go_to_one_and_short_ones_to_the_other(routing: Routing) -> None:
    async with roles() as (router, prefill, decode):
        for num_tokens, wanted in ((20, decode), (256, decode), (257, prefill), (900, prefill)):
            for _ in range(3):
                assert router.choose(demand_of(asks(num_tokens), routing)) is wanted


async def test_a_prompt_that_is_cached_where_it_would_be_decoded_goes_there() -> None:
    async with roles() as (router, _, decode):
        held = prefix_ids("", _LONG[:720], _SIZE)
        decode.blocks.update(engine_pb2.WatchBlocksResponse(sequence=1, is_whole=True, added=held, block_size=_SIZE))
        assert router.choose(demand_of(asks(900))) is decode


async def test_a_sequence_goes_on_with_its_first_token_and_says_who_has_its_blocks() -> None:
    async with roles() as (router, prefill, decode):
        heard = Heard()
        router.start(asks(900), heard)
        assert not decode.requests
        prefill.say("r", 7)
        (again,) = decode.requests
        assert (list(again.prompt_token_ids), again.num_output_tokens) == ([*_LONG[:900], 7], 1)
        assert again.kv_source == prefill.instance_id
        assert list(prefill.ending().abort) == ["r"]
        prefill.say("r", 99)
        decode.say(again.request_id, 8)
        assert (heard.token_ids, heard.errors) == ({0: [7, 8]}, [])
        assert router.num_moved["prefilled"] == 1


async def test_all_sequences_of_a_prompt_go_on_together() -> None:
    async with roles() as (router, prefill, decode):
        router.start(asks(900, n=2), heard := Heard())
        prefill.say("r", 7)
        assert not decode.requests
        prefill.say("r", 8, index=1)
        assert [list(one.prompt_token_ids)[-1] for one in decode.requests] == [7, 8]
        assert heard.errors == []


@pytest.mark.parametrize("why", ["no blocks", "others wait", "it drains", "it is doubtful", "it is gone"])
async def test_without_room_where_it_would_be_decoded_it_stays(why: str) -> None:
    async with roles() as (router, prefill, decode):
        heard = Heard()
        router.start(asks(900), heard)
        match why:
            case "no blocks":
                decode.reported_load.num_free_blocks = 900 // _SIZE
            case "others wait":
                decode.reported_load.num_waiting = 1
            case "it drains":
                decode.goes_away()
            case "it is doubtful":
                decode.doubt()
            case "it is gone":
                decode.is_up.clear()
                decode.crash()
                await until(lambda: not decode.is_ready)
        for token_id in range(1, 17):
            prefill.say("r", token_id)
        assert not decode.requests
        if why in ("no blocks", "others wait"):
            give_role(decode, common_pb2.KV_ROLE_DECODE)
            decode.reported_load.num_waiting = 0
            prefill.say("r", 17)
            assert decode.requests[0].num_output_tokens == 17, "later there is room"
        assert heard.token_ids[0][:16] == list(range(1, 17))
        assert heard.errors == []


async def test_log_probabilities_of_a_prompt_keep_it_where_it_is() -> None:
    async with roles() as (router, prefill, decode):
        request = asks(900)
        request.sampling.prompt_logprobs = 1
        router.start(request, Heard())
        prefill.say("r", 1)
        assert not decode.requests


async def test_without_an_engine_for_prompts_all_goes_to_those_that_decode() -> None:
    async with roles() as (router, prefill, decode):
        prefill.is_up.clear()
        prefill.crash()
        await until(lambda: not prefill.is_ready)
        assert router.choose(demand_of(asks(900))) is decode


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_where_it_cannot_be_decoded_its_prompt_s_engine_goes_on(how: str) -> None:
    async with roles() as (router, prefill, decode):
        router.start(asks(900), heard := Heard())
        prefill.say("r", 7)
        (moved,) = decode.requests
        if how == "refused":
            decode.refuse(moved.request_id, ServiceUnavailableError("asleep"))
        else:
            decode.say(moved.request_id, 8)
            decode.is_up.clear()
            decode.crash()
        await until(lambda: len(prefill.requests) == 2)
        again = prefill.requests[1]
        assert (again.num_output_tokens, again.kv_source) == (1 if how == "refused" else 2, "")
        for token_id in range(20, 40):
            prefill.say(again.request_id, token_id)
        assert len(decode.requests) == 1, "it does not come and go"
        assert heard.token_ids[0] == [7, *([] if how == "refused" else [8]), *range(20, 40)]
        assert heard.errors == []


async def test_where_it_decodes_is_lost_another_one_computes_it_anew() -> None:
    async with engines("prefill:1", "decode:1", "decode:2") as (router, made, _):
        prefill, decoding = made["prefill:1"], [made["decode:1"], made["decode:2"]]
        give_role(prefill, common_pb2.KV_ROLE_PREFILL)
        for engine in decoding:
            give_role(engine, common_pb2.KV_ROLE_DECODE)
        router.start(asks(900), heard := Heard())
        prefill.say("r", 7)
        lost = next(engine for engine in decoding if engine.requests)
        other = next(engine for engine in decoding if engine is not lost)
        lost.say(lost.requests[0].request_id, 8)
        lost.is_up.clear()
        lost.crash()
        await until(lambda: len(prefill.requests) == 2)
        again = prefill.requests[1]
        assert (again.num_output_tokens, again.kv_source) == (2, ""), "a long prompt is computed where prompts are"
        prefill.say(again.request_id, 9)
        (moved,) = other.requests
        assert (moved.num_output_tokens, moved.kv_source) == (3, prefill.instance_id)
        assert heard.errors == []


async def test_what_came_from_another_engine_does_not_count_as_cached() -> None:
    async with roles() as (router, prefill, decode):
        router.start(asks(900), heard := Heard())
        first = engine_pb2.SequenceOutput(
            request_id="r", token_ids=[7], usage=common_pb2.Usage(prompt_tokens=900, cached_tokens=32)
        )
        prefill.received(engine_pb2.SessionResponse(outputs=[first]))
        usage = common_pb2.Usage(prompt_tokens=900, completion_tokens=2, cached_tokens=896)
        last = engine_pb2.SequenceOutput(
            request_id=decode.requests[0].request_id, token_ids=[8], usage=usage, finish_reason=common_pb2.FINISH_REASON_STOP
        )
        response = engine_pb2.SessionResponse(outputs=[last])
        decode.received(response)
        assert response.outputs[0].usage.cached_tokens == 32
        assert heard.token_ids == {0: [7, 8]}
