"""Calls without media, and requests that continue a sequence behind its output so far, which becomes a part of the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import engine_pb2

from triptych_frontend.engines.router import EngineRouter, Listener
from triptych_frontend.generation.sampling import seed_of_choice

#: Distance of the seeds of two positions. More than a request has choices.
_SEEDS_PER_TOKEN = 256


def of_one(request: engine_pb2.EngineRequest, index: int) -> engine_pb2.EngineRequest:
    """The request for one of its sequences, with the id and the seed that the engine would give that sequence."""
    one = engine_pb2.EngineRequest()
    one.CopyFrom(request)
    one.request_id, one.n = f"{request.request_id}-{index}", 1
    if one.sampling.HasField("seed"):
        one.sampling.seed = seed_of_choice(request.sampling.seed, index)
    return one


def add_output(request: engine_pb2.EngineRequest, token_ids: Sequence[int]) -> None:
    """Make a request of one sequence continue behind these output tokens. Its limits of tokens still count them."""
    sampling = request.sampling
    request.prompt_token_ids.extend(token_ids)
    if sampling.HasField("max_tokens"):
        sampling.max_tokens -= len(token_ids)
    sampling.min_tokens = max(0, sampling.min_tokens - len(token_ids))
    sampling.ClearField("prompt_logprobs")


def after_reasoning(request: engine_pb2.EngineRequest, token_ids: Sequence[int]) -> engine_pb2.EngineRequest:
    """A request of one sequence, continued behind its reasoning.

    Args:
        token_ids: the output, up to the end of the reasoning.
    """
    answer = engine_pb2.EngineRequest()
    answer.CopyFrom(request)
    add_output(answer, token_ids)
    if answer.HasField("constraint"):
        answer.constraint.ClearField("starts_after_token_ids")
    if answer.sampling.HasField("seed"):
        # Random numbers depend on the position in a request's output, so the answer would get those of the reasoning again.
        answer.sampling.seed = seed_of_choice(answer.sampling.seed, _SEEDS_PER_TOKEN * len(token_ids))
    return answer


def joined_costs(first: engine_pb2.SequenceOutput, last: engine_pb2.SequenceOutput) -> engine_pb2.SequenceOutput:
    """The last output of a sequence that went on in a second request, with what both requests cost.

    The second request finds prompt and media in the prefix cache, so what is said about these comes from the first one.
    """
    joined = engine_pb2.SequenceOutput()
    joined.CopyFrom(last)
    joined.usage.CopyFrom(first.usage)
    del joined.media[:]
    joined.media.extend(first.media)
    joined.timings.CopyFrom(first.timings)
    joined.timings.decode_s += last.timings.queue_s + last.timings.prefill_s + last.timings.decode_s
    joined.timings.num_preemptions += last.timings.num_preemptions
    return joined


class TextCall:
    """A call without media: one request to an engine, and a further one for each choice whose reasoning was ended.

    Args:
        request: for all of them.
        listener: receives their outputs, as in `EngineRouter.start`.

    Raises:
        what `EngineRouter.start` raises.
    """

    def __init__(self, engines: EngineRouter, request: engine_pb2.EngineRequest, listener: Listener) -> None:
        self._engines = engines
        self._request = request
        self._listener = listener
        self._num_further = 0
        #: For each sequence, the call that carries it.
        self._calls = [engines.start(request, listener)] * (request.n or 1)

    def abort(self, index: int) -> None:
        """End one sequence in the engine. Its last output still arrives."""
        self._calls[index].abort(index)

    def go_on(self, index: int, token_ids: Sequence[int]) -> None:
        """See Sequences. Raises what `EngineRouter.start` raises."""
        request = after_reasoning(of_one(self._request, index), token_ids)
        self._num_further += 1
        request.request_id += f"-{self._num_further}"
        self._calls[index] = self._engines.start(request, self._listener, index)

    def close(self) -> None:
        """End all sequences, and stop listening. May be called twice."""
        for call in self._calls:
            call.close()
