"""Accumulators: however an answer is cut into responses, they merge into the same answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from triptych.accumulators import ChatAccumulator, CompleteAccumulator
from triptych.v1 import common_pb2, generation_pb2

_TEXT = st.text(max_size=12)


@st.composite
def choices(draw: st.DrawFn, index: int) -> generation_pb2.Choice:
    """A whole choice with anything that one can have."""
    choice = generation_pb2.Choice(
        index=index,
        reasoning=draw(_TEXT),
        text=draw(_TEXT),
        token_ids=draw(st.lists(st.integers(0, 9), max_size=4)),
        finish_reason=draw(st.sampled_from([common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH])),
    )
    for number in range(draw(st.integers(0, 2))):
        choice.tool_calls.add(id=f"call-{number}", name=draw(st.sampled_from(["add", "look_up"])), arguments=draw(_TEXT))
    for token_id in choice.token_ids:
        choice.logprobs.add(token_id=token_id, logprob=-0.5, rank=1)
    if index == 0:
        choice.prompt_logprobs.add(token_id=1)
    match draw(st.sampled_from(["text", "token", "none"])):
        case "text":
            choice.stop_text = "\n\n"
        case "token":
            choice.stop_token_id = 7
    return choice


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def deltas(draw: st.DrawFn, choice: generation_pb2.Choice) -> list[generation_pb2.ChoiceDelta]:
    """The choice as it may be streamed."""
    delta, call_delta = generation_pb2.ChoiceDelta, generation_pb2.ToolCallDelta
    parts = [delta(index=choice.index, prompt_tokens=3)]
    parts += [delta(index=choice.index, reasoning=piece) for piece in pieces(draw, choice.reasoning)]
    parts += [delta(index=choice.index, text=piece) for piece in pieces(draw, choice.text)]
    for number, call in enumerate(choice.tool_calls):
        first, *others = pieces(draw, call.arguments)
        parts.append(delta(index=choice.index, tool_call=call_delta(index=number, id=call.id, name=call.name, arguments=first)))
        parts += [delta(index=choice.index, tool_call=call_delta(index=number, arguments=piece)) for piece in others]
    for place, (token_id, logprob) in enumerate(zip(choice.token_ids, choice.logprobs, strict=True)):
        target = parts[place * len(parts) // len(choice.token_ids)]
        target.token_ids.append(token_id)
        target.logprobs.append(logprob)
    parts[0].prompt_logprobs.extend(choice.prompt_logprobs)
    parts[-1].finish_reason = choice.finish_reason
    if (stop := choice.WhichOneof("matched_stop")) is not None:
        setattr(parts[-1], stop, getattr(choice, stop))
    return parts


def interleaved(draw: st.DrawFn, lists: list[list[generation_pb2.ChoiceDelta]]) -> list[list[generation_pb2.ChoiceDelta]]:
    """The deltas of all choices, those of each in their order, several in some responses."""
    queues, responses = [list(one) for one in lists], [[]]
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        responses[-1].append(queue.pop(0))
        if draw(st.booleans()):
            responses.append([])
    return responses


@st.composite
def streams(draw: st.DrawFn) -> tuple[generation_pb2.ChatResponse, list[generation_pb2.ChatStreamResponse]]:
    """An answer, and responses that stream it."""
    whole = generation_pb2.ChatResponse(
        request_id="id",
        model="model",
        choices=[draw(choices(index)) for index in range(draw(st.integers(1, 3)))],
        usage=common_pb2.Usage(prompt_tokens=3, completion_tokens=5),
        timings=common_pb2.Timings(queue_s=0.25),
        media=[generation_pb2.MediaReport(num_tokens=9)] * draw(st.integers(0, 2)),
    )
    responses = [
        generation_pb2.ChatStreamResponse(request_id="id", model="model", choices=part)
        for part in interleaved(draw, [deltas(draw, choice) for choice in whole.choices])
    ]
    responses[-1].usage.CopyFrom(whole.usage)
    responses[-1].timings.CopyFrom(whole.timings)
    responses[-1].media.extend(whole.media)
    return whole, responses


@given(streams())
def test_any_stream_of_an_answer_merges_into_it(stream: tuple[generation_pb2.ChatResponse, list]) -> None:
    whole, responses = stream
    accumulator = ChatAccumulator()
    for response in responses:
        accumulator.add(generation_pb2.ChatStreamResponse.FromString(response.SerializeToString()))
    assert accumulator.response == whole
    assert accumulator.response is not accumulator.response


@given(streams())
def test_completions_merge_in_the_same_way(stream: tuple[generation_pb2.ChatResponse, list]) -> None:
    whole, responses = stream
    accumulator = CompleteAccumulator()
    for response in responses:
        accumulator.add(generation_pb2.CompleteStreamResponse.FromString(response.SerializeToString()))
    assert accumulator.response == generation_pb2.CompleteResponse.FromString(whole.SerializeToString())


def test_before_the_first_response_there_is_nothing() -> None:
    assert ChatAccumulator().response == generation_pb2.ChatResponse()
    assert CompleteAccumulator().response == generation_pb2.CompleteResponse()
