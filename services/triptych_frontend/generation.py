"""A call from prompt to last delta: fan-out to the engine, text back, and the sum at the end."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeVar

import grpc
from triptych_common.errors import TriptychError
from triptych_common.logs import request_id_var
from triptych_common.pb import common_pb2, engine_pb2, generation_pb2

from triptych_frontend.choice import Choice
from triptych_frontend.engine_client import EngineCall, EngineClient
from triptych_frontend.preprocess import Prompt
from triptych_frontend.sampling import GenerationParams, max_output_tokens
from triptych_frontend.served_model import ServedModel
from triptych_frontend.tokenizer import Tokenizer

log = logging.getLogger(__name__)
Response = TypeVar("Response", generation_pb2.ChatResponse, generation_pb2.CompleteResponse)


class Generator:
    """Runs generations on one engine."""

    def __init__(self, client: EngineClient, tokenizer: Tokenizer, model: ServedModel) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._model = model
        self._eos_token_ids = frozenset(model.info.eos_token_ids)

    async def run(
        self,
        prompt: Prompt,
        params: GenerationParams,
        context: grpc.aio.ServicerContext,
        respond: type[Response],
        prompt_field: str,
        echo: bool = False,
    ) -> AsyncIterator[Response]:
        """Generate, and yield the call's responses as they become due.

        However it ends, by the last token, an error or a client that left, nothing is left behind in the engine.

        Args:
            respond: the type of the responses.
            prompt_field: the request's field that errors about the prompt name.

        Raises:
            ContextLengthError: prompt and output do not fit the model's context.
            ServiceUnavailableError: the engine is away, or went away.
            TriptychError: the engine refused or failed the request.
        """
        choices = [Choice(index, prompt, params, self._tokenizer, self._eos_token_ids, echo) for index in range(params.num_choices)]
        with _logged(respond.DESCRIPTOR.name.removesuffix("Response"), prompt, choices):
            call = self._client.start(self._engine_requests(prompt, params, prompt_field))
            # A client that leaves while a response is being written cancels the writer, not this generator.
            context.add_done_callback(lambda _: call.close())  # type: ignore[arg-type]  # the stubs ask for a class of their own
            try:
                async for deltas, is_last in _deltas(call, choices):
                    response = respond(request_id=request_id_var.get(), model=self._model.info.name, choices=deltas)
                    if is_last:
                        response.usage.CopyFrom(_usage(prompt, choices))
                        response.timings.CopyFrom(_timings(prompt, choices))
                    yield response
            finally:
                call.close()

    def _engine_requests(self, prompt: Prompt, params: GenerationParams, prompt_field: str) -> list[engine_pb2.EngineRequest]:
        num_prompt_tokens = len(prompt.token_ids)
        max_tokens: int | None = max_output_tokens(params.sampling, num_prompt_tokens, self._model.info.max_model_len, prompt_field)
        if not params.sampling.HasField("max_tokens") and not self._model.shortens_context:
            max_tokens = None  # the engine bounds it, and knows its KV cache
        # A client may use one request id for several calls; the engine's must be unique.
        call_id = f"{request_id_var.get()}-{secrets.token_hex(8)}"
        return [
            engine_pb2.EngineRequest(
                request_id=f"{call_id}-{index}",
                prompt_token_ids=prompt.token_ids,
                sampling=params.for_choice(index, max_tokens),
                priority=params.priority,
                cache_salt=params.cache_salt,
            )
            for index in range(params.num_choices)
        ]


async def _deltas(call: EngineCall, choices: list[Choice]) -> AsyncIterator[tuple[list[generation_pb2.ChoiceDelta], bool]]:
    """What is new in the choices, and whether that is all. Outputs that waited together are one item."""
    num_running = len(choices)
    while num_running:
        deltas = []
        for index, output in (await call.next()).items():
            choice = choices[index]
            had_matched = choice.has_matched_stop
            choice.feed(output)
            if choice.is_finished:
                num_running -= 1
            elif choice.has_matched_stop and not had_matched:
                # Its finish waits for the engine's word, a step at most, which brings cached tokens and timings.
                call.abort(index)
            delta = choice.take()
            if delta is not None:
                deltas.append(delta)
        if deltas:
            yield deltas, not num_running


@contextlib.contextmanager
def _logged(method: str, prompt: Prompt, choices: Sequence[Choice]) -> Iterator[None]:
    """Log one line when the call ends: what it cost and how it ended."""
    start_s, end = time.perf_counter(), "cancelled"
    try:
        yield
        end = ", ".join(
            sorted({common_pb2.FinishReason.Name(choice.finish_reason)[len("FINISH_REASON_") :].lower() for choice in choices})
        )
    except TriptychError as error:
        end = error.reason
        raise
    finally:
        num_output_tokens = sum(choice.num_tokens for choice in choices)
        elapsed_ms = (time.perf_counter() - start_s) * 1e3
        log.info(
            "%s: %d prompt and %d output tokens, %s, %.1f ms", method, len(prompt.token_ids), num_output_tokens, end, elapsed_ms
        )


def _usage(prompt: Prompt, choices: list[Choice]) -> common_pb2.Usage:
    first = choices[0].last
    return common_pb2.Usage(
        prompt_tokens=len(prompt.token_ids),
        completion_tokens=sum(choice.num_tokens for choice in choices),
        # The prompt counts once, so do its cached tokens: further choices find what the first one computed.
        cached_tokens=first.usage.cached_tokens if first is not None else 0,
    )


def _timings(prompt: Prompt, choices: list[Choice]) -> common_pb2.Timings:
    ended = [choice.last.timings for choice in choices if choice.last is not None]
    timings = common_pb2.Timings()
    timings.CopyFrom(max(ended, key=lambda timings: timings.queue_s + timings.prefill_s + timings.decode_s))
    timings.preprocess_s = prompt.preprocess_s
    return timings
