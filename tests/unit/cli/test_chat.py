"""`triptych chat` against a fake frontend behind real gRPC."""

from __future__ import annotations

import asyncio
import io

import pytest
from support.fakes.echo_frontend import echo_frontend
from triptych import Client
from triptych.errors import InvalidRequestError
from triptych_cli.chat import Conversation, chat
from triptych_cli.errors import CommandError


async def test_piped_lines_are_turns_of_one_conversation() -> None:
    async with echo_frontend() as (frontend, address):
        out = io.StringIO()
        await asyncio.to_thread(
            chat, address, system="Be brief.", temperature=0.0, stdin=io.StringIO("one two\n\nthree\n"), stdout=out
        )
    assert out.getvalue() == "one two \nthree \n"
    assert frontend.turns(1) == [("system", "Be brief."), ("user", "one two"), ("assistant", "one two "), ("user", "three")]
    sampling = frontend.requests[0].options.sampling
    assert sampling.temperature == 0.0
    assert sampling.HasField("temperature")
    assert not sampling.HasField("max_tokens")


async def test_a_refusal_is_shown_and_ends_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    async with echo_frontend() as (_, address):
        with pytest.raises(CommandError):
            await asyncio.to_thread(chat, address, stdin=io.StringIO("refuse me\nnever asked\n"), stdout=io.StringIO())
    assert "messages[0] is not to my taste" in capsys.readouterr().err


async def test_stopping_an_answer_cancels_the_call_and_keeps_what_came() -> None:
    async with echo_frontend() as (frontend, address):

        def talk() -> None:
            with Client(address) as client:
                conversation = Conversation(client)
                answer = conversation.ask("for ever")
                assert next(answer) == "for "
                answer.close()
                assert "".join(conversation.ask("and now")) == "and now "
                conversation.reset()
                assert "".join(conversation.ask("anew")) == "anew "

        await asyncio.to_thread(talk)
        await asyncio.wait_for(frontend.cancelled.wait(), 30)
    assert frontend.turns(1) == [("user", "for ever"), ("assistant", "for "), ("user", "and now")]
    assert frontend.turns(2) == [("user", "anew")]


async def test_a_refused_turn_is_forgotten() -> None:
    async with echo_frontend() as (frontend, address):

        def talk() -> None:
            with Client(address) as client:
                conversation = Conversation(client)
                with pytest.raises(InvalidRequestError):
                    list(conversation.ask("refuse me"))
                list(conversation.ask("hello"))

        await asyncio.to_thread(talk)
    assert frontend.turns(1) == [("user", "hello")]


async def test_a_proxy_for_the_web_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with echo_frontend() as (_, address):
        out = io.StringIO()
        await asyncio.to_thread(chat, address, stdin=io.StringIO("hello\n"), stdout=out)
    assert out.getvalue() == "hello \n"


def test_nothing_there_is_one_clear_line() -> None:
    with pytest.raises(CommandError, match=r"nobody answers at 127\.0\.0\.1:1; start one with `triptych serve`"):
        chat("127.0.0.1:1", stdin=io.StringIO("hello\n"))
