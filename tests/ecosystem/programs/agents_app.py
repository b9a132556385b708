"""The OpenAI Agents SDK against two OpenAI-compatible servers. Arguments: URL of a scripted server, URL of a real one, model.

The scripted server answers with what the last text of the conversation tells it: {"mock": {...}}.
"""

import asyncio
import json
import sys
from itertools import count
from typing import Any, Literal

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OutputGuardrailTripwireTriggered,
    RunContextWrapper,
    Runner,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

scripted, served, model_name = sys.argv[1:]
Models = OpenAIChatCompletionsModel | OpenAIResponsesModel
set_tracing_disabled(True)
#: The arguments of all calls of the tools.
called: list[Any] = []
ids = count()


class Verdict(BaseModel):
    """What a guardrail's agent says."""

    is_refused: bool


class City(BaseModel):
    """A structured answer."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


class Reason(BaseModel):
    """The arguments of a handoff."""

    text: str


def script(*calls: tuple[str, dict[str, Any]], **fields: Any) -> str:
    """A text that tells the scripted server what to answer: calls of tools, and other fields of a script."""
    # The SDK refuses an id that another call had.
    fields["toolCalls"] = [{"id": f"call_{next(ids)}", "name": name, "arguments": json.dumps(given)} for name, given in calls]
    return json.dumps({"mock": fields})


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    called.append(city)
    return f"sunny in {city}"


@function_tool
def run_script(answer: str) -> str:
    """A tool whose result is the next script."""
    return answer


async def uses_tools(model: Models) -> None:
    agent = Agent(name="weather", instructions="Use your tools.", model=model, tools=[get_weather, run_script])
    called.clear()
    asked = script(("get_weather", {"city": "Paris"}), reasoning="I must look.", text="I look.")
    result = await Runner.run(agent, asked)
    assert result.final_output == "sunny in Paris", result.final_output
    assert called == ["Paris"], called
    kinds = [item.type for item in result.new_items]
    assert kinds == ["reasoning_item", "message_output_item", "tool_call_item", "tool_call_output_item", "message_output_item"], (
        kinds
    )

    # Two calls at once, then one more, each of which drives the next turn.
    called.clear()
    then = script(("get_weather", {"city": "Oslo"}), reasoning="And one more.")
    result = await Runner.run(agent, script(("get_weather", {"city": "Zürich"}), ("run_script", {"answer": then})))
    assert called == ["Zürich", "Oslo"], called
    assert result.final_output == "sunny in Oslo", result.final_output
    assert len(result.raw_responses) == 3
    assert result.context_wrapper.usage.output_tokens > 0

    # The whole conversation goes back, with its reasoning and its calls.
    again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "Thanks."}])
    assert again.final_output == "Thanks."
    assert again.context_wrapper.usage.input_tokens > result.raw_responses[-1].usage.input_tokens


async def hands_off(model: Models) -> None:
    async def noted(context: RunContextWrapper[None], reason: Reason) -> None:
        called.append(reason.text)

    billing = Agent(name="billing", instructions="You bill.", model=model, tools=[get_weather])
    door = handoff(billing, on_handoff=noted, input_type=Reason)
    triage = Agent(name="triage", instructions="You ask others.", model=model, tools=[run_script], handoffs=[door])
    called.clear()
    hand_over = script(("transfer_to_billing", {"text": "a bill"}))
    for asked in (hand_over, script(("run_script", {"answer": hand_over}))):
        result = await Runner.run(triage, asked)
        assert result.last_agent is billing, result.last_agent
        assert json.loads(result.final_output) == {"assistant": "billing"}, result.final_output
    assert called == ["a bill", "a bill"], called
    turn = {"role": "user", "content": script(("get_weather", {"city": "Rome"}))}
    result = await Runner.run(result.last_agent, [*result.to_input_list(), turn])
    assert (result.last_agent, result.final_output) == (billing, "sunny in Rome")


async def tripwire(kind: type[Any], agent: Agent, text: str) -> Any:
    """The result of the guardrail that ends a run with this exception."""
    try:
        await Runner.run(agent, text)
    except kind as error:
        return error.guardrail_result
    raise SystemExit(f"no {kind.__name__} came")


async def is_guarded(model: Models) -> None:
    judge = Agent(name="judge", instructions="Judge.", model=model, output_type=Verdict)

    async def verdict(text: Any) -> GuardrailFunctionOutput:
        output = (await Runner.run(judge, text)).final_output_as(Verdict, raise_if_incorrect_type=True)
        return GuardrailFunctionOutput(output_info=output, tripwire_triggered=output.is_refused)

    @input_guardrail
    async def guards_input(context: Any, agent: Any, text: Any) -> GuardrailFunctionOutput:
        return await verdict(text)

    @output_guardrail
    async def guards_output(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        return await verdict(output)

    refused, allowed = (Verdict(is_refused=value).model_dump_json() for value in (True, False))
    at_input = Agent(name="in", model=model, input_guardrails=[guards_input])
    assert (await Runner.run(at_input, script(text=allowed))).final_output == allowed
    tripped = await tripwire(InputGuardrailTripwireTriggered, at_input, script(text=refused))
    assert tripped.output.output_info == Verdict(is_refused=True)

    # The answer is the script of the guardrail's agent.
    at_output = Agent(name="out", model=model, output_guardrails=[guards_output])
    assert (await Runner.run(at_output, script(text=script(text=allowed)))).final_output == script(text=allowed)
    tripped = await tripwire(OutputGuardrailTripwireTriggered, at_output, script(text=script(text=refused)))
    assert tripped.agent_output == script(text=refused)


async def streams(model: Models) -> None:
    billing = Agent(name="billing", model=model)
    agent = Agent(name="weather", instructions="Use your tools.", model=model, tools=[get_weather, run_script], handoffs=[billing])
    hand_over = script(("transfer_to_billing", {}))
    for answer, last in ((script(text="It is sunny."), agent), (hand_over, billing)):
        result = Runner.run_streamed(agent, script(("run_script", {"answer": answer}), reasoning="I must look."))
        events = [event async for event in result.stream_events()]
        names = [event.name for event in events if event.type == "run_item_stream_event"]
        assert names[:3] == ["reasoning_item_created", "tool_called", "tool_output"], names
        assert names[-1] == "message_output_created", names
        assert ("handoff_occured" in names) == (last is billing), names
        raw = [event.data for event in events if event.type == "raw_response_event"]
        text = "".join(event.delta for event in raw if event.type == "response.output_text.delta")
        assert text == result.final_output, (text, result.final_output)
        arguments = "".join(event.delta for event in raw if event.type == "response.function_call_arguments.delta")
        assert json.dumps({"answer": answer}) in arguments, arguments
        agents = [event.new_agent for event in events if event.type == "agent_updated_stream_event"]
        assert agents == ([agent] if last is agent else [agent, billing]), agents
        assert result.last_agent is last


async def continues_on_the_server(model: OpenAIResponsesModel) -> None:
    agent = Agent(name="weather", instructions="Use your tools.", model=model, tools=[get_weather])
    asked = script(("get_weather", {"city": "Paris"}), reasoning="I must look.")
    whole = await Runner.run(agent, asked)
    chained = await Runner.run(agent, asked, auto_previous_response_id=True)
    assert chained.final_output == whole.final_output == "sunny in Paris"
    assert chained.context_wrapper.usage.input_tokens == whole.context_wrapper.usage.input_tokens
    then = await Runner.run(agent, "And now?", previous_response_id=chained.last_response_id)
    assert then.final_output == "And now?"
    assert then.context_wrapper.usage.input_tokens > chained.raw_responses[-1].usage.input_tokens


async def is_forced(model: Models) -> None:
    """A real model calls a tool and keeps to a type, because it must."""
    settings = ModelSettings(temperature=0, max_tokens=100, tool_choice="required", parallel_tool_calls=False)
    forced = Agent(
        name="weather", model=model, model_settings=settings, tools=[get_weather], tool_use_behavior="stop_on_first_tool"
    )
    called.clear()
    result = await Runner.run(forced, "What is the weather in Paris?")
    assert len(called) == 1
    assert result.final_output == f"sunny in {called[0]}", (result.final_output, called)
    streamed = Runner.run_streamed(forced, "What is the weather in Paris?")
    assert "tool_called" in [event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
    assert streamed.final_output == result.final_output, (streamed.final_output, result.final_output)

    typed = Agent(name="city", model=model, model_settings=ModelSettings(temperature=0, max_tokens=100), output_type=City)
    result = await Runner.run(typed, "Name the capital of France.")
    assert isinstance(result.final_output, City), result.final_output
    streamed = Runner.run_streamed(typed, "Name the capital of France.")
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == result.final_output


async def main() -> None:
    mock = AsyncOpenAI(base_url=f"{scripted}/v1", api_key="none", max_retries=0)
    real = AsyncOpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        for flow in (uses_tools, hands_off, is_guarded, streams):
            await flow(kind(model_name, mock))
        await is_forced(kind(model_name, real))
    await continues_on_the_server(OpenAIResponsesModel(model_name, mock))


asyncio.run(main())
print("ok")
