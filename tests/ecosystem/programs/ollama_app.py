"""Ollama's clients for Python. Arguments: URL of a scripted server, URL of a real one that has `embed` too, model.

The scripted server answers with what the last text of the conversation tells it: {"mock": {...}}.
"""

import asyncio
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

scripted, served, model = sys.argv[1:]
mock, real = Client(scripted), Client(served)
GREEDY = {"temperature": 0, "num_predict": 48}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SHAPES = Path(__file__).resolve().parents[3] / "examples" / "three-shapes.png"


class City(BaseModel):
    """A structured answer."""

    name: str
    is_capital: bool


def get_weather(city: str) -> str:
    """
    Get the weather in a city.

    Args:
        city: The city.

    Returns:
        str: The weather.
    """
    return f"sunny in {city}"


def script(*calls: tuple[str, dict[str, Any]], **fields: Any) -> list[dict[str, str]]:
    """A conversation that tells the scripted server what to answer: calls of tools, and other fields of a script."""
    made = [{"id": f"call_{number}", "name": name, "arguments": json.dumps(given)} for number, (name, given) in enumerate(calls)]
    return [{"role": "user", "content": json.dumps({"mock": {"toolCalls": made, **fields}})}]


def refusal(ask: Callable[[], Any]) -> ResponseError:
    """The error that a request ends with."""
    try:
        ask()
    except ResponseError as error:
        return error
    raise SystemExit("no error came")


def dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def chats() -> None:
    whole = real.chat(model, FRANCE, options=GREEDY)
    assert "Paris" in whole.message.content, whole
    assert (whole.done, whole.done_reason in ("stop", "length")) == (True, True)
    assert whole.prompt_eval_count > 0
    assert 0 < whole.eval_count <= 48
    assert whole.total_duration >= whole.prompt_eval_duration + whole.eval_duration + whole.load_duration > 0, whole
    parts = list(real.chat(f"{model}:latest", FRANCE, options=GREEDY, stream=True))
    assert len(parts) > 3, parts
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count
    cut = real.chat(model, FRANCE, options=GREEDY | {"num_predict": 2})
    assert (cut.done_reason, cut.eval_count) == ("length", 2)
    stopped = real.chat(model, FRANCE, options=GREEDY | {"stop": ["Paris"]})
    assert "Paris" not in stopped.message.content
    told = real.chat(model, FRANCE, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(told.logprobs) == told.eval_count
    assert len(told.logprobs[0].top_logprobs) == 2
    longer = real.chat(model, [*FRANCE, whole.message, {"role": "user", "content": "And of Italy?"}], options=GREEDY)
    assert longer.prompt_eval_count > whole.prompt_eval_count
    seeded = {"seed": 5, "num_predict": 16, "temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repeat_penalty": 1.1}
    assert real.chat(model, FRANCE, options=seeded).message.content == real.chat(model, FRANCE, options=seeded).message.content


def sees() -> None:
    asked = "Where is the triangle?"
    for image in (str(SHAPES), SHAPES.read_bytes(), SHAPES):
        answer = real.chat(model, [{"role": "user", "content": asked, "images": [image]}], options=GREEDY)
        assert answer.message.content.strip() == "Top", answer
    assert real.generate(model, asked, images=[SHAPES.read_bytes()], options=GREEDY).response.strip() == "Top"
    with tempfile.NamedTemporaryFile(suffix=".png") as broken:
        broken.write(b"no picture" * 100)
        broken.flush()
        error = refusal(lambda: real.chat(model, [{"role": "user", "content": asked, "images": [broken.name]}]))
    assert error.status_code == 400, error
    assert "messages[0].images[0]" in error.error, error


def keeps_to_schemas() -> None:
    answer = real.chat(model, FRANCE, format=City.model_json_schema(), options=GREEDY | {"num_predict": 200})
    assert isinstance(City.model_validate_json(answer.message.content), City)
    asked = "Name a city as JSON."
    assert isinstance(json.loads(real.generate(model, asked, format="json", options=GREEDY | {"num_predict": 400}).response), dict)


def generates() -> None:
    whole = real.generate(model, "What is the capital of France?", options=GREEDY)
    assert "Paris" in whole.response, whole
    assert (
        "".join(part.response for part in real.generate(model, FRANCE[0]["content"], options=GREEDY, stream=True)) == whole.response
    )
    raw = real.generate(model, "Once upon a time", raw=True, options=GREEDY)
    assert raw.prompt_eval_count < whole.prompt_eval_count, "a chat template was used"
    pirate = real.generate(model, FRANCE[0]["content"], system="You are a pirate. " * 5, options=GREEDY)
    assert pirate.prompt_eval_count > whole.prompt_eval_count
    loaded = real.generate(model, keep_alive="5m")
    assert (loaded.response, loaded.done_reason) == ("", "load")


def calls_tools() -> None:
    turns: list[Any] = script(
        ("get_weather", {"city": "Zürich"}), ("get_weather", {"city": "Oslo"}), text="I look.", reasoning="Hm."
    )
    answer = mock.chat(model, turns, tools=[get_weather])
    assert (answer.message.thinking, answer.message.content) == ("Hm.", "I look."), answer
    calls = answer.message.tool_calls
    assert [call.function.arguments["city"] for call in calls] == ["Zürich", "Oslo"], calls
    # As the README of the client has it.
    results = [
        {"role": "tool", "content": get_weather(**call.function.arguments), "tool_name": call.function.name} for call in calls
    ]
    turns += [answer.message, *results]
    assert mock.chat(model, turns, tools=[get_weather]).message.content == "sunny in Oslo"
    parts = list(mock.chat(model, turns[:1], tools=[get_weather], stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "Hm."
    assert [call for part in parts for call in part.message.tool_calls or ()] == calls
    # The real model may call it or not.
    answer = real.chat(model, [{"role": "user", "content": "What is the weather in Paris?"}], tools=[get_weather], options=GREEDY)
    assert answer.message.content or answer.message.tool_calls, answer


def embeds() -> None:
    one, several = real.embed("embed", "A cat."), real.embed("embed", ["A cat.", "A kitten.", "A tax form."])
    cat, kitten, form = several.embeddings
    assert max(abs(a - b) for a, b in zip(cat, one.embeddings[0], strict=True)) < 1e-3
    assert abs(math.hypot(*cat) - 1) < 1e-3
    assert dot(cat, kitten) > dot(cat, form)
    assert several.prompt_eval_count > one.prompt_eval_count > 0
    assert len(real.embeddings("embed", "A cat.").embedding) == len(cat)
    assert real.show("embed").capabilities == ["embedding"]
    error = refusal(lambda: real.embed("embed", "word " * 5000, truncate=False))
    assert error.status_code == 400, error
    assert real.embed("embed", "word " * 5000).embeddings
    assert refusal(lambda: real.embed(model, "x")).status_code == 400


def tells_of_models() -> None:
    (listed,) = (one for one in real.list().models if one.model == f"{model}:latest")
    loaded = {one.model: one for one in real.ps().models}[f"{model}:latest"]
    assert listed.digest == loaded.digest
    shown = real.show(model)
    assert {"completion", "vision"} <= set(shown.capabilities), shown
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == loaded.context_length
    assert shown.details.family == architecture
    assert loaded.size > 1 << 20, "what the processes take"


def is_refused() -> None:
    for ask in (
        lambda: real.chat("no-such-model", FRANCE),
        lambda: list(real.chat("no-such-model", FRANCE, stream=True)),
        lambda: real.generate("no-such-model", "Hi"),
        lambda: real.show("no-such-model"),
    ):
        error = refusal(ask)
        assert (error.status_code, error.error) == (404, 'model "no-such-model" not found'), error
    for options, said in (
        ({"num_thread": 4}, "options.num_thread"),
        ({"mirostat": 1}, "options.mirostat"),
        ({"top_p": 2}, "options.top_p"),
    ):
        error = refusal(lambda given=options: real.chat(model, FRANCE, options=given))
        assert (error.status_code, error.error.startswith(said)) == (400, True), error
    assert "think" in refusal(lambda: real.chat(model, FRANCE, think=True)).error
    for ask in (
        lambda: real.pull("x"),
        lambda: real.push("x"),
        lambda: real.create("x", from_="y"),
        lambda: real.copy("x", "y"),
        lambda: real.delete("x"),
        lambda: real.create_blob(SHAPES),
    ):
        error = refusal(ask)
        assert (error.status_code, "triptych serve" in error.error) == (404, True), error
    full = {"error": {"code": 8, "reason": "QUEUE_FULL"}}
    assert refusal(lambda: mock.chat(model, script(fault=full))).status_code == 429
    broken = script(text="One two three.", fault={"afterTokens": 2, "error": {"code": 13}})
    pieces: list[str] = []
    error = refusal(lambda: pieces.extend(part.message.content for part in mock.chat(model, broken, stream=True)))
    assert (error.status_code, "".join(pieces)) == (-1, "One two"), (error, pieces)


async def works_asynchronously() -> None:
    client = AsyncClient(served)
    whole, other = await asyncio.gather(client.chat(model, FRANCE, options=GREEDY), client.generate(model, "Hi", options=GREEDY))
    assert "Paris" in whole.message.content
    assert other.done
    stream = await client.chat(model, FRANCE, options=GREEDY, stream=True)
    assert "".join([part.message.content async for part in stream]) == whole.message.content
    assert (await client.list()).models
    # A client that leaves ends the work.
    async for _ in await client.chat(model, [{"role": "user", "content": "Count to a thousand."}], stream=True):
        break
    await client.close()


for flow in (chats, sees, keeps_to_schemas, generates, calls_tools, embeds, tells_of_models, is_refused):
    flow()
asyncio.run(works_asynchronously())
print("ok")
