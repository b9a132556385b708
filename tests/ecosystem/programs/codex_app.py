"""A loop like that of the Codex CLI, with the openai package. Arguments: URL of a scripted server, URL of a real one, model.

The scripted server answers with what the last text of the conversation tells it: {"mock": {...}}.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import openai
from openai import OpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionToolCall,
    ResponseInProgressEvent,
    ResponseOutputItem,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ResponseReasoningSummaryPartAddedEvent,
    ResponseReasoningSummaryPartDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningSummaryTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)

scripted, served, model = sys.argv[1:]
mock = OpenAI(base_url=f"{scripted}/v1", api_key="none", max_retries=0)
real = OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
INSTRUCTIONS = "You are a coding agent that runs in a terminal."
DEVELOPER = "<permissions instructions>Ask nobody.</permissions instructions>"
LATER = "<permissions instructions>Ask the user.</permissions instructions>"
CONTEXT = "<environment_context><cwd>/tmp</cwd></environment_context>"
#: Short, because a tiny model would go on until its last token.
EXEC = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3}},
    "required": ["command"],
    "additionalProperties": False,
}
PATCH = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "name": "exec", "description": "Runs a command.", "strict": False, "parameters": EXEC},
    {"type": "function", "name": "apply_patch", "description": "Edits files.", "strict": False, "parameters": PATCH},
]
OPTIONS: dict[str, Any] = {
    "model": model,
    "instructions": INSTRUCTIONS,
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a213cf-48a5-7c42-ab19-537131b4f378",
}
SUMMARY = {"reasoning": {"summary": "auto"}}
#: Item -> its events: before its deltas, the deltas, and after them.
EVENTS: dict[type, tuple[list[type], type, list[type]]] = {
    ResponseReasoningItem: (
        [ResponseOutputItemAddedEvent, ResponseReasoningSummaryPartAddedEvent],
        ResponseReasoningSummaryTextDeltaEvent,
        [ResponseReasoningSummaryTextDoneEvent, ResponseReasoningSummaryPartDoneEvent, ResponseOutputItemDoneEvent],
    ),
    ResponseOutputMessage: (
        [ResponseOutputItemAddedEvent, ResponseContentPartAddedEvent],
        ResponseTextDeltaEvent,
        [ResponseTextDoneEvent, ResponseContentPartDoneEvent, ResponseOutputItemDoneEvent],
    ),
    ResponseFunctionToolCall: (
        [ResponseOutputItemAddedEvent],
        ResponseFunctionCallArgumentsDeltaEvent,
        [ResponseFunctionCallArgumentsDoneEvent, ResponseOutputItemDoneEvent],
    ),
}


def script(*calls: tuple[str, str, dict[str, Any]], **fields: Any) -> str:
    """A text that tells the scripted server what to answer: calls of tools, and other fields of a script."""
    made = [{"id": call_id, "name": name, "arguments": json.dumps(arguments)} for call_id, name, arguments in calls]
    return json.dumps({"mock": {"toolCalls": made, **fields}})


def message(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def content_of(item: ResponseOutputItem) -> str:
    """What the deltas of an item must make."""
    if isinstance(item, ResponseReasoningItem):
        return "".join(part.text for part in item.summary)
    if isinstance(item, ResponseFunctionToolCall):
        return item.arguments
    assert isinstance(item, ResponseOutputMessage), item
    return "".join(part.text for part in item.content if part.type == "output_text")


def checked(events: list[Any]) -> Response:
    """The response at the end of a stream, whose events have the order that the client knows."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    created, began, *middle, completed = events
    assert isinstance(created, ResponseCreatedEvent), created
    assert isinstance(began, ResponseInProgressEvent), began
    assert isinstance(completed, ResponseCompletedEvent), completed
    assert created.response.id == completed.response.id
    for index, item in enumerate(completed.response.output):
        of_item = [event for event in middle if event.output_index == index]
        assert middle[: len(of_item)] == of_item, "the events of two items are mixed"
        del middle[: len(of_item)]
        before, delta, after = EVENTS[type(item)]
        deltas = of_item[len(before) : -len(after)]
        assert [type(event) for event in of_item] == before + [delta] * len(deltas) + after, of_item
        assert "".join(event.delta for event in deltas) == content_of(item), (deltas, item)
        assert of_item[0].item.id == of_item[-1].item.id == item.id
        assert {event.item_id for event in of_item[1:-1]} == {item.id}
        assert of_item[-1].item == item, "the item is the same as at the end"
        if isinstance(item, ResponseFunctionToolCall):
            assert (of_item[0].item.call_id, of_item[0].item.name) == (item.call_id, item.name)
    assert not middle, middle
    return completed.response


def asked(client: OpenAI, items: list[Any], **options: Any) -> Response:
    """One turn. Like the CLI, it appends what `response.output_item.done` brings to the items."""
    with client.responses.create(input=items, stream=True, **OPTIONS | options) as stream:
        events = list(stream)
    done = [event.item for event in events if isinstance(event, ResponseOutputItemDoneEvent)]
    items += [sent_back(item) for item in done]
    return checked(events)


def sent_back(item: ResponseOutputItem) -> dict[str, Any]:
    """An item as the CLI sends it back: reasoning without its content, and in its opaque form."""
    fields = item.to_dict()
    return {name: fields[name] for name in ("type", "id", "summary", "encrypted_content")} if item.type == "reasoning" else fields


def calls_of(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]


def output(call: ResponseFunctionToolCall, text: str) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


def refusal(kind: type[openai.APIStatusError], ask: Callable[[], Any]) -> Any:
    """The error of this class that a request ends with."""
    try:
        ask()
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__} came")


def loops() -> None:
    """Two calls at once, then one, then a message. What tools return drives the next turn."""
    patch = "*** Begin Patch\n*** Add File: a.txt\n+Zürich\n*** End Patch"
    first = script(
        ("call_1", "exec", {"command": ["ls"]}),
        ("call_2", "apply_patch", {"input": patch}),
        reasoning="I must look.",
        text="I look and write.",
    )
    items = [message("developer", DEVELOPER), message("user", CONTEXT), message("user", first)]
    response = asked(mock, items, **SUMMARY)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, told, look, write = response.output
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.encrypted_content
    assert isinstance(told, ResponseOutputMessage)
    assert told.phase == "commentary"
    assert [call.call_id for call in calls_of(response)] == ["call_1", "call_2"]
    assert json.loads(look.arguments) == {"command": ["ls"]}
    assert json.loads(write.arguments) == {"input": patch}

    items += [
        output(look, "a.txt"),
        output(write, script(("call_3", "exec", {"command": ["cat", "a.txt"]}), reasoning="And read.")),
    ]
    following = asked(mock, items, **SUMMARY)
    (read,) = calls_of(following)
    assert (read.call_id, json.loads(read.arguments)) == ("call_3", {"command": ["cat", "a.txt"]})
    assert following.usage.input_tokens > response.usage.input_tokens
    items.append(output(read, "The file says Zürich."))
    last = asked(mock, items, **SUMMARY)
    assert last.output_text == "The file says Zürich."
    assert [item.type for item in last.output] == ["message"]
    assert last.output[0].phase == "final_answer"

    # Nothing was stored.
    assert last.store is False
    for one in (response, following, last):
        refusal(openai.NotFoundError, lambda of=one.id: mock.responses.retrieve(of))


def instructs() -> None:
    """The instructions and the developer's text are in the prompt of the real model."""
    # The CLI also tells the developer's text of the moment before a later turn.
    told = [("developer", DEVELOPER), ("user", "Say hello."), ("assistant", "Hello."), ("developer", LATER), ("user", "Again.")]
    items = [{"role": role, "content": text} for role, text in told]
    chat = [{"role": "system", "content": INSTRUCTIONS}, *items]
    wrapped = [{"type": "function", "function": {name: part for name, part in tool.items() if name != "type"}} for tool in TOOLS]
    body = {"model": model, "messages": chat, "tools": wrapped}
    rendered: Any = real.post("/chat/completions/render", body=body, cast_to=object)
    for text in (INSTRUCTIONS, DEVELOPER, LATER, "Say hello.", "Again.", "apply_patch"):
        assert rendered["prompt"].count(text) == 1, (text, rendered["prompt"])
    response = asked(real, items.copy(), tool_choice="none", max_output_tokens=100, text={"format": {"type": "json_object"}})
    counted = real.responses.input_tokens.count(
        model=model, instructions=INSTRUCTIONS, input=items, tools=TOOLS, parallel_tool_calls=True
    )
    assert counted.input_tokens == rendered["count"], (counted, rendered["count"])
    assert response.usage.input_tokens == rendered["count"], (response.usage, rendered["count"])


def is_forced() -> None:
    """A real model calls a tool because it must, sees the result, and ends with a message."""
    options = {"temperature": 0, "max_output_tokens": 100}
    items = [message("developer", DEVELOPER), message("user", "Which files are here?")]
    once = {"tool_choice": {"type": "function", "name": "exec"}, "parallel_tool_calls": False}
    (call,) = calls_of(asked(real, items, **once, **options))
    assert call.name == "exec"
    assert isinstance(json.loads(call.arguments), dict), call
    assert call.call_id.startswith("call_")
    items.append(output(call, "a.txt"))
    error = refusal(openai.BadRequestError, lambda: asked(real, [*items[:2], items[-1]]))
    assert error.param == "input[2].call_id", error
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "string", "enum": ["a.txt", "b.txt"]}}
    last = asked(real, items, tool_choice="none", text={"format": form}, **options)
    assert json.loads(last.output_text) in ("a.txt", "b.txt"), last.output_text


loops()
instructs()
is_forced()
print("ok")
