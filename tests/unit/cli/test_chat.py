"""`triptych chat` against a fake frontend behind real gRPC."""

from __future__ import annotations

import asyncio
import io
import os
import re
from pathlib import Path

import pytest
from support.drivers.grpc_port import grpc_port_of
from support.fakes.echo_frontend import echo_frontend
from support.fakes.frontend import FakeFrontend
from triptych import Client
from triptych.errors import InvalidRequestError
from triptych_cli.chat.command import chat, run
from triptych_cli.chat.conversation import Conversation
from triptych_cli.chat.terminal import Terminal
from triptych_cli.errors import CommandError


def said(conversation: Conversation, text: str) -> str:
    return "".join(piece for kind, piece in conversation.ask(text) if kind == "text")


class Screen(io.StringIO):
    """A terminal, for what is written."""

    def isatty(self) -> bool:
        return True


async def test_piped_lines_are_turns_of_one_conversation() -> None:
    async with echo_frontend() as (frontend, address):
        out = io.StringIO()
        await asyncio.to_thread(
            chat, address, system="Be brief.", parameters={"temperature": 0.0}, stdin=io.StringIO("one two\n\nthree\n"), stdout=out
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
                assert next(answer) == ("text", "for ")
                answer.close()
                assert said(conversation, "and now") == "and now "
                conversation.reset()
                assert said(conversation, "anew") == "anew "

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


async def test_a_gateway_that_wants_a_key_says_where_to_give_it() -> None:
    async with grpc_port_of(FakeFrontend(), api_key="secret") as port:
        with pytest.raises(CommandError, match=r"an API key is needed: .*; give it in TRIPTYCH_API_KEY, or as --api-key-file FILE"):
            await asyncio.to_thread(chat, port.address, stdin=io.StringIO("hello\n"))


async def test_reasoning_is_apart_on_a_terminal_and_absent_from_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    async with echo_frontend() as (_, address):
        pipe, screen = io.StringIO(), Screen()
        for out in (pipe, screen):
            await asyncio.to_thread(chat, address, stdin=io.StringIO("think hard\n"), stdout=out)
    assert pipe.getvalue() == "think hard \n"
    assert screen.getvalue() == "\x1b[2m(think)(hard)\x1b[0m\nthink hard \n"
    assert capsys.readouterr().err == "7 + 11 tokens, 100 tokens/s\n"


async def test_a_terminal_obeys_no_answer() -> None:
    async with echo_frontend() as (_, address):
        pipe, screen = io.StringIO(), Screen()
        for out in (pipe, screen):
            await asyncio.to_thread(chat, address, stdin=io.StringIO("\x1b]52;c;aGk=\x07 ü\n"), stdout=out)
    assert pipe.getvalue() == "\x1b]52;c;aGk=\x07 ü \n"
    assert screen.getvalue() == "\N{REPLACEMENT CHARACTER}]52;c;aGk=\N{REPLACEMENT CHARACTER} ü \n"


async def test_parameters_files_and_saved_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, saved = tmp_path / "p.png", tmp_path / "talk.json"
    picture.write_bytes(b"png")

    def talk() -> None:
        with Client(address) as client:
            terminal = Terminal(Conversation(client), io.StringIO())
            for line in (f"/image {picture}", "/set temperature 0.5", "/set seed 7", "/set system Be brief.", "/set seed"):
                terminal.command(line)
            assert terminal.answer("what is it")
            terminal.command(f"/save {saved}")
            terminal.command("/reset")
            again = Terminal(Conversation(client), io.StringIO())
            again.command(f"/load {saved}")
            again.command("/set")
            assert again.answer("and now")

    async with echo_frontend() as (frontend, address):
        await asyncio.to_thread(talk)
    first, second = frontend.requests
    assert [part.WhichOneof("part") for part in first.messages[1].content] == ["media", "text"]
    assert first.messages[1].content[0].media.data == b"png"
    assert first.options.sampling.temperature == 0.5
    assert not first.options.sampling.HasField("seed")
    assert [message.role for message in second.messages] == ["system", "user", "assistant", "user"]
    assert second.messages[1] == first.messages[1]
    assert second.options == first.options
    assert capsys.readouterr().err == f"{saved}: 2 messages\n{saved}: 2 messages\nsystem Be brief.\ntemperature 0.5\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/what", "unknown command /what; /help lists all"),
        ("/image", "/image needs a file"),
        ("/audio no-such.wav", "there is no file no-such.wav"),
        ("/set heat 1", "there is no parameter heat; there are system, model, temperature"),
        ("/set top_k much", "top_k is a number, not 'much'"),
        ("/save", "/save needs a file"),
        ("/save /no/such/folder/x", "cannot write /no/such/folder/x: No such file or directory"),
        ("/load no-such.json", "cannot read no-such.json: No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(line: str, message: str) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(CommandError, match=f"^{re.escape(message)}"):
        Terminal(Conversation(client), io.StringIO()).command(line)


def test_a_conversation_with_bytes_that_are_no_text_is_saved(tmp_path: Path) -> None:
    with Client("127.0.0.1:1") as client:
        Conversation(client, system="a\udcff").save(tmp_path / "x.json")
        again = Conversation(client)
        again.load(tmp_path / "x.json")
    assert again.system == "a\udcff"


@pytest.mark.parametrize(
    "content", ["no json", "[" * 100_000, "[]", "{}", '{"system": null, "parameters": {"x": 1}, "messages": []}']
)
def test_what_is_no_saved_conversation_changes_nothing(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with Client("127.0.0.1:1") as client:
        conversation = Conversation(client, system="before")
        with pytest.raises(CommandError, match=re.escape(str(path))):
            conversation.load(path)
    assert conversation.system == "before"


async def test_run_uses_a_gateway_that_serves_the_model() -> None:
    async with echo_frontend() as (frontend, address):
        out = io.StringIO()
        options = {"address": address, "parameters": {"max_tokens": 3}, "stdin": io.StringIO("from a pipe\n"), "stdout": out}
        await asyncio.to_thread(run, "fake", "repeat", **options)
    assert out.getvalue() == "repeat from a pipe \n"
    assert frontend.turns(0) == [("user", "repeat\n\nfrom a pipe")]
    assert frontend.requests[0].model == "fake"
    assert frontend.requests[0].options.sampling.max_tokens == 3


async def test_run_does_not_ask_another_model() -> None:
    async with echo_frontend() as (_, address):
        with pytest.raises(CommandError, match=f"{address} does not serve other, but fake"):
            await asyncio.to_thread(run, "other", "x", address=address, stdin=io.StringIO("y"))


def test_run_without_a_prompt_in_a_pipe() -> None:
    with pytest.raises(CommandError, match="there is no prompt: the input is empty"):
        run("fake", stdin=io.StringIO(" \n"))


async def test_a_reader_who_has_enough_ends_the_answer_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    async with echo_frontend() as (_, address):
        with os.fdopen(writer, "w") as out:
            await asyncio.to_thread(chat, address, stdin=io.StringIO("one two\n"), stdout=out)
    assert capsys.readouterr().err == ""
