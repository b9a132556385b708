"""The programs of examples/ send what they say, and use the answer. A fake or the mock gives it, behind a real gateway.

`integration/stack/test_example_programs.py` has answers of the built-in models.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.fakes.frontend import FakeFrontend, Script, running, says
from support.fakes.gateway import serving_http, until_connected
from support.mock import mock_server
from support.tool_scripts import end, tool_call
from support.waiting import until
from triptych.v1 import common_pb2
from triptych_common.settings import DEFAULT_MODEL
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@asynccontextmanager
async def gateway_of(*frontends: str, **settings: Any) -> AsyncIterator[str]:
    """A gateway in front of the frontends at these addresses. Yields its URL."""
    app = create_app(GatewaySettings(frontend_addresses=frontends, **settings))
    async with serving_http(app) as (host, port):
        await until(lambda: hasattr(app.state.gateway, "pool"))
        await until_connected(app)
        yield f"http://{host}:{port}/v1"


async def run(program: str, url: str, *arguments: str | Path, stdin: str = "", **environment: str) -> str:
    """Run an example against this gateway. Returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _EXAMPLES / program,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "OPENAI_BASE_URL": url, "NO_PROXY": "127.0.0.1"} | environment,
    )
    output, _ = await process.communicate(stdin.encode())
    assert process.returncode == 0
    return output.decode()


async def run_with(
    program: str, frontend: FakeFrontend, *arguments: str | Path, model: str = DEFAULT_MODEL, stdin: str = ""
) -> str:
    """Run an example whose model is this fake. Returns what it prints."""
    frontend.model = common_pb2.ModelInfo(name=model, fingerprint="0123456789abcdef", max_model_len=2048, vocab_size=100)
    async with running(frontend) as address, gateway_of(address) as url:
        return await run(program, url, *arguments, stdin=stdin)


def in_turn(*scripts: Script) -> FakeFrontend:
    """A frontend that plays one script after the other."""
    frontend, left = FakeFrontend(), list(scripts)
    frontend.script = lambda request: left.pop(0)
    return frontend


def calls(name: str, **arguments: Any) -> Script:
    return Script([[*tool_call(0, [json.dumps(arguments)], name=name), end(common_pb2.FINISH_REASON_TOOL_CALLS)]])


def turns(request: Any) -> list[tuple[str, str]]:
    """Role and text of each message."""
    return [(message.role, "".join(part.text for part in message.content)) for message in request.messages]


def test_the_table_has_all_programs() -> None:
    rows = re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", (_EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in _EXAMPLES.glob("*.py"))


async def test_a_chat_about_pictures() -> None:
    frontend = in_turn(says("At the", " top."), says("The square."))
    pictures = [_EXAMPLES / "circle.png", _EXAMPLES / "seven.jpeg"]
    assert await run_with("chat_with_pictures.py", frontend, *pictures, stdin="Where?\nAnd what?\n") == "At the top.\nThe square.\n"
    assert turns(frontend.request) == [("user", "Where?"), ("assistant", "At the top."), ("user", "And what?")]
    media = [[part.media.data for part in message.content if part.HasField("media")] for message in frontend.request.messages]
    assert media == [[path.read_bytes() for path in pictures], [], []]


async def test_tools_are_called_until_the_model_answers() -> None:
    wrong = calls("DaysBetween", first="2026-03-01", last="tomorrow")
    right = calls("DaysBetween", first="2026-03-01", last="2026-12-24")
    frontend = in_turn(wrong, right, calls("Weather"), calls("DayOfTheWeek", day="2026-12-24"), says("298 days."))
    output = await run_with("call_tools.py", frontend, "How many days?")
    assert output.endswith("298 days.\n")
    assert [tool.name for tool in frontend.request.tools] == ["DaysBetween", "DayOfTheWeek"]
    roles, texts = zip(*turns(frontend.request), strict=True)
    assert roles == ("user", *("assistant", "tool") * 4)
    assert {message.tool_call_id for message in frontend.request.messages if message.role == "tool"} == {"call_1"}
    assert (texts[0], texts[4], texts[8]) == ("How many days?", "298", "Thursday")
    assert re.match(r"error: .*\nlast\n.*date", texts[2])
    assert texts[6].startswith("error: ")


async def test_an_answer_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Cats sleep\nall day.\n\nDogs do not.")
    (tmp_path / "b.txt").write_text("Where cats eat is the kitchen.\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    async with (
        mock_server(served_model_name=DEFAULT_MODEL) as chat,
        mock_server(served_model_name="embed") as embed,
        gateway_of(chat.address, embed.address) as url,
    ):
        output = await run("answer_from_files.py", url, "where do cats sleep", *files)
    # The mock ranks by words in common, and answers with the prompt.
    texts = "Cats sleep all day.\n\nWhere cats eat is the kitchen."
    assert output == f"{texts}\n\nAnswer in one sentence, from the text above only: where do cats sleep\nRead in: a.txt, b.txt\n"


async def test_a_batch(tmp_path: Path) -> None:
    lines = (_EXAMPLES / "requests.jsonl").read_text().splitlines()
    refused = json.loads(lines[0])
    refused["custom_id"], refused["body"]["colour"] = "refused", "red"
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join([json.dumps(refused), *lines]))
    async with mock_server(served_model_name=DEFAULT_MODEL) as mock, gateway_of(mock.address, files_dir=tmp_path / "files") as url:
        *answers, last = (await run("answer_a_batch.py", url, requests)).splitlines()
        requests.write_text(f"{lines[0]}\n{lines[0]}")
        assert re.fullmatch("line 2: .*custom_id.*\n", await run("answer_a_batch.py", url, requests))
    assert re.match("refused: .*colour", last)
    assert sorted(answers) == [
        f"{country.lower()}: What is the capital of {country}?" for country in ("France", "Germany", "Japan")
    ]


async def test_structured_data() -> None:
    order = {"customer": "Paul Meier", "city": "Vienna", "item": "chair", "quantity": 2}
    frontend = in_turn(says(json.dumps(order)))
    output = await run_with("read_structured_data.py", frontend, "Two chairs to Paul Meier in Vienna.")
    first, _, printed = output.partition("\n")
    assert (first, json.loads(printed)) == ("2 x chair to Paul Meier, Vienna", order)
    assert turns(frontend.request)[1:] == [("user", "Two chairs to Paul Meier in Vienna.")]
    assert json.loads(frontend.request.options.constraint.json_schema)["properties"].keys() == order.keys()


async def test_a_voice_note() -> None:
    frontend = in_turn(says("Call Maria."))
    assert await run_with("transcribe.py", frontend, model="Qwen/Qwen2-Audio-7B-Instruct") == "Call Maria.\n"
    media = frontend.request.messages[-1].content[0].media
    assert (media.modality, media.data) == (common_pb2.MODALITY_AUDIO, (_EXAMPLES / "voice-note.ogg").read_bytes())


async def test_an_agent_remembers() -> None:
    frontend = in_turn(calls("add", item="milk"), says("It is there."), calls("read", all=1), calls("read"), says("Milk."))
    assert (
        await run_with("agent_with_memory.py", frontend, stdin="Put milk on my list\nWhat is on it?\n") == "It is there.\nMilk.\n"
    )
    assert [turn for turn in turns(frontend.request) if turn[0] != "assistant"] == [
        ("system", "You keep a shopping list. Be brief."),
        ("user", "Put milk on my list"),
        ("tool", "added milk"),
        ("user", "What is on it?"),
        ("tool", "error: read() got an unexpected keyword argument 'all'"),
        ("tool", "milk"),
    ]
    assert ("assistant", "It is there.") in turns(frontend.request)
