"""GenerationService.Session: many calls on one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc
import pytest
from support.builders.frontend import Bench, chat_request, frontend_bench, ids, joined
from support.builders.tokenizer import IM_END_ID
from support.fakes.engine import says
from support.waiting import until
from triptych.errors import ContextLengthError, InvalidRequestError, NeverFitsError, ServiceUnavailableError
from triptych.status import from_request_error, from_rpc_error
from triptych.v1 import common_pb2, control_pb2, engine_pb2, generation_pb2
from triptych_common.rpc.status import to_request_error
from triptych_frontend.rpc import session as session_module
from triptych_frontend.rpc.session import GenerationSession

Call = generation_pb2.GenerationCall
Request = generation_pb2.GenerationServiceSessionRequest
Options = generation_pb2.GenerationOptions
TEXT = "Hello there, how are you?"


class Client:
    """One session, and what came on it by call number."""

    def __init__(self, bench: Bench) -> None:
        self.stream = bench.generation.Session()
        self.messages: list[generation_pb2.GenerationServiceSessionResponse] = []
        self.responses: dict[int, list[generation_pb2.GenerationCallResponse]] = {}

    async def start(self, *calls: Call) -> None:
        await self.stream.write(Request(start=calls))

    async def read(self) -> bool:
        """One message; False at the end."""
        message = await self.stream.read()
        if message is grpc.aio.EOF:
            return False
        self.messages.append(message)
        for response in message.responses:
            self.responses.setdefault(response.number, []).append(response)
        return True

    async def start_and_hold(self, bench: Bench, *calls: Call) -> None:
        """Let the engine begin all of them and pause; read the beginnings."""
        num_requests = len(calls)
        await bench.engine.pause()
        await self.start(*calls)
        await bench.engine.until(lambda: len(bench.engine.requests) == num_requests)
        await bench.engine.pause(after_steps=1)
        while len(self.responses) < len(calls):
            assert await self.read()

    async def read_all(self) -> None:
        while await self.read():
            pass

    async def until_ended(self, numbers: Iterable[int]) -> None:
        async with asyncio.timeout(30):
            while not all(self._has_ended(number) for number in numbers):
                assert await self.read()

    def _has_ended(self, number: int) -> bool:
        last = self.responses.get(number, [generation_pb2.GenerationCallResponse()])[-1]
        return last.HasField("usage") or last.HasField("error")


@asynccontextmanager
async def a_session(*args: object, **settings: object) -> AsyncIterator[tuple[Bench, Client]]:
    async with frontend_bench(*args, **settings) as bench:
        yield bench, Client(bench)


def chat(number: int, text: str = "Hi", **options: object) -> Call:
    return Call(number=number, request_id=f"request-{number}", chat=chat_request(text, options=Options(**options)))


async def test_calls_are_answered_as_streams_of_their_own_would_be() -> None:
    async with a_session(says(ids(TEXT), stop_token_id=IM_END_ID, cached_tokens=3)) as (bench, client):
        complete = generation_pb2.CompleteRequest(text="Once", echo=True)
        await client.start(*(chat(number) for number in range(1, 9)), Call(number=9, complete=complete))
        await client.until_ended(range(1, 10))
        alone = [response async for response in bench.chat(chat_request())]
        requests = bench.engine.requests
    for number in range(1, 9):
        responses = client.responses[number]
        assert [response.choices for response in responses] == [response.choices for response in alone]
        assert responses[-1].usage == alone[-1].usage
        assert responses[-1].timings.prefill_s == 0.25
    assert joined(client.responses[9]) == "Once" + TEXT
    assert {request.request_id.rsplit("-", 1)[0] for request in requests} >= {f"request-{number}" for number in range(1, 9)}


async def test_what_a_step_brings_travels_in_one_message() -> None:
    async with a_session(says(ids(TEXT), stop_token_id=IM_END_ID)) as (bench, client):
        await bench.engine.pause()
        await client.start(*(chat(number) for number in range(64)))
        await bench.engine.until(lambda: len(bench.engine.requests) == 64)
        await bench.engine.resume()
        await client.until_ended(range(64))
    num_responses = sum(map(len, client.responses.values()))
    assert num_responses > 10 * len(client.messages)


async def test_a_refused_call_ends_alone_with_its_error() -> None:
    async with a_session() as (_, client):
        too_long = chat(2, sampling=common_pb2.SamplingParams(max_tokens=10**6))
        await client.start(chat(1), too_long, Call(number=3, chat=chat_request(model="other")), chat(4))
        await client.until_ended(range(1, 5))
    assert joined(client.responses[1]) == joined(client.responses[4]) == "Hello there"
    (refusal,) = client.responses[2]
    error = from_request_error(refusal.error)
    assert isinstance(error, ContextLengthError)
    assert error.limit
    assert client.responses[3][0].error.reason == "MODEL_NOT_FOUND"


async def test_an_error_of_the_engine_comes_after_the_text() -> None:
    error = to_request_error(NeverFitsError("too large", limit=8, value=9))

    def fails_midway(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        failed = engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)
        return [engine_pb2.SequenceOutput(token_ids=ids("Hello")), failed]

    async with a_session(fails_midway) as (_, client):
        await client.start(chat(1))
        await client.until_ended([1])
    assert joined(client.responses[1]) == "Hello"
    assert client.responses[1][-1].error.limit == "8"


async def test_a_cancelled_call_is_aborted_and_says_no_more() -> None:
    async with a_session(says(ids(TEXT))) as (bench, client):
        await client.start_and_hold(bench, chat(1), chat(2))
        await client.stream.write(Request(cancel=[1, 77]))
        await bench.engine.until(lambda: len(bench.engine.aborted) == 1)
        await bench.engine.resume()
        await client.until_ended([2])
        live = bench.frontend.num_live_requests
    assert joined(client.responses[2]) == TEXT
    assert len(client.responses[1]) == 1
    assert live == 0


async def test_ending_the_stream_cancels_what_it_started() -> None:
    async with a_session(says(ids(TEXT))) as (bench, client):
        await client.start_and_hold(bench, chat(1), chat(2, n=3))
        client.stream.cancel()
        await bench.engine.until(lambda: len(bench.engine.aborted) == 2)
        await until(lambda: bench.frontend.num_live_requests == 0)


async def test_a_client_that_ends_its_side_gets_the_rest() -> None:
    async with a_session(says(ids(TEXT))) as (_, client):
        await client.start(chat(1), chat(2))
        await client.stream.done_writing()
        await client.read_all()
        assert await client.stream.code() is grpc.StatusCode.OK
    assert [joined(client.responses[number]) for number in (1, 2)] == [TEXT, TEXT]


@pytest.mark.parametrize(("again", "message"), [(chat(1), "call number 1 is in use"), (Call(number=2), "has no request")])
async def test_a_client_that_breaks_the_contract_loses_its_session(again: Call, message: str) -> None:
    async with a_session(says(ids(TEXT))) as (bench, client):
        await client.start_and_hold(bench, chat(1))
        await client.start(again)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read_all()
        await until(lambda: bench.frontend.num_live_requests == 0)
    assert isinstance(from_rpc_error(caught.value), InvalidRequestError)
    assert message in caught.value.details()


async def test_a_session_says_who_serves_it_and_when_to_look_elsewhere() -> None:
    async with a_session() as (bench, client):
        assert await client.read()
        assert client.messages[0].instance.id == bench.frontend.server.identity.id
        await bench.control.Drain(control_pb2.DrainRequest(timeout_s=0))
        assert await client.read()
        assert client.messages[-1].going_away
        assert not await client.read()


async def test_draining_ends_the_session_after_its_last_call_and_takes_no_new_one() -> None:
    async with a_session(says(ids(TEXT))) as (bench, client):
        await client.start_and_hold(bench, chat(1))
        await bench.control.Drain(control_pb2.DrainRequest(timeout_s=0))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Client(bench).read()
        await bench.engine.resume()
        await client.read_all()
        await bench.control.WakeUp(control_pb2.WakeUpRequest())
        awake = Client(bench)
        await awake.start(chat(1))
        await awake.until_ended([1])
    assert joined(client.responses[1]) == joined(awake.responses[1]) == TEXT
    assert isinstance(from_rpc_error(refused.value), ServiceUnavailableError)


async def test_an_answer_too_large_for_the_stream_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_MAX_RESPONSE_BYTES", 2000)
    async with a_session(says(ids("word " * 1000))) as (_, client):
        large = chat(1)
        large.output_mode = generation_pb2.OUTPUT_MODE_FINAL
        await client.start(large, chat(2))
        await client.until_ended([1, 2])
    (refusal,) = client.responses[1]
    assert refusal.error.limit == "2000"
    assert joined(client.responses[2]) == "word " * 1000


async def test_large_answers_do_not_share_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_MAX_MESSAGE_BYTES", 2000)
    text = "word " * 300
    async with a_session(says(ids(text), tokens_per_step=10_000)) as (bench, client):
        await bench.engine.pause()
        await client.start(*(chat(number) for number in range(8)))
        await bench.engine.until(lambda: len(bench.engine.requests) == 8)
        await bench.engine.resume()
        await client.until_ended(range(8))
    assert [joined(client.responses[number]) for number in range(8)] == [text] * 8
    assert max(message.ByteSize() for message in client.messages) < 3500


async def test_what_a_client_wrote_is_cut_in_errors_and_ends_nobody_elses_call() -> None:
    async with a_session() as (_, client):
        huge = chat_request(model="\x7f" * 14_000_000)
        await client.start(chat(1))
        await client.start(Call(number=2, chat=huge), Call(number=3, chat=huge))
        await client.until_ended([1, 2, 3])
    assert joined(client.responses[1]) == "Hello there"
    assert client.responses[2][0].ByteSize() < 10_000


async def test_full_is_said_to_the_call_that_is_too_many() -> None:
    async with a_session(says(ids(TEXT)), max_live_requests=2) as (bench, client):
        await client.start_and_hold(bench, chat(1), chat(2))
        await client.start(chat(3))
        await client.until_ended([3])
        await bench.engine.resume()
        await client.until_ended([1, 2])
        await client.start(chat(4))
        await client.until_ended([4])
    assert client.responses[3][0].error.reason == "QUEUE_FULL"
    assert [joined(client.responses[number]) for number in (1, 2, 4)] == [TEXT] * 3


async def test_a_number_that_is_used_again_gets_nothing_of_the_call_that_was_cancelled() -> None:
    async with frontend_bench() as bench:
        frontend = bench.frontend
        session = GenerationSession(frontend._generator, common_pb2.Instance())
        # What a message had no room for waits while the stream writes; the client cancels meanwhile.
        session._due.append(generation_pb2.GenerationCallResponse(number=1, choices=[generation_pb2.ChoiceDelta(text="old")]))
        session._due.append(generation_pb2.GenerationCallResponse(number=2, choices=[generation_pb2.ChoiceDelta(text="other")]))
        session._cancel(1)
        message = session._next_message()
        assert message is not None
        assert [response.number for response in message.responses] == [2]
