"""What a request may do with its key: models, priority, tokens, a place among the key's requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from triptych.v1 import generation_pb2

from triptych_gateway.access.key_ring import Key
from triptych_gateway.access.rates import Draw, Kind, Level, MemoryRates
from triptych_gateway.file_parts import run_sized
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.frontends.models import visible_models_var
from triptych_gateway.record import RequestRecord, Tally
from triptych_gateway.wire.errors import AccessDeniedError

#: Bytes of a request per token of its prompt: OpenAI's rule of thumb. The answer's usage corrects it.
_BYTES_PER_TOKEN = 4
#: A larger request that generates nothing is counted in a thread.
_SMALL_BYTES = 4 << 10
#: OpenAI's names of the headers that tell a limit, what is left of it, and when all is there again.
_HEADERS: dict[Kind, tuple[bytes, bytes, bytes]] = {
    "requests": (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    "tokens": (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
}
RATE_HEADERS = tuple(name.decode() for names in _HEADERS.values() for name in names)
#: Of a model's name, in the audit log.
_MAX_MODEL_CHARS = 200
PoolingMessage = generation_pb2.EmbedRequest | generation_pb2.ClassifyRequest | generation_pb2.ScoreRequest


class Places:
    """The requests of each key that are being answered, or its open WebSockets. Not thread-safe: used only on the event loop."""

    def __init__(self) -> None:
        self._taken = Counter[str]()

    @contextmanager
    def taken(self, key: Key) -> Iterator[None]:
        """Take a place while the block runs. Raises AccessDeniedError if the key has none left."""
        limit = key.max_concurrent_requests
        if limit is not None and self._taken[key.id] >= limit:
            message = f"Rate limit reached for concurrent requests: limit {limit}. Please try again when one has ended."
            raise AccessDeniedError(
                429, message, "concurrent_requests", code="rate_limit_exceeded", kind="requests", retry_after_s=1.0
            )
        self._taken[key.id] += 1
        try:
            yield
        finally:
            self._taken[key.id] -= 1
            if not self._taken[key.id]:
                del self._taken[key.id]


class Grant:
    """A request's permission. Its owner calls `begin`, and `end` when the answer has ended, also if that failed or the client left.

    Args:
        record: tells what the request used.
    """

    def __init__(self, key: Key, record: RequestRecord, rates: MemoryRates, places: Places) -> None:
        self.key = key
        self._record, self._rates, self._places = record, rates, places
        self._place = ExitStack()
        self._is_kept = self._is_closed = False
        self._reserved = 0

    async def begin(self) -> None:
        """Take a place, and a request of the key's rate. Raises AccessDeniedError."""
        key = self.key
        self._place.enter_context(self._places.taken(key))
        # Nothing is taken of the tokens yet. The answer's headers tell their level, also where no tokens are used.
        limits = (("requests", key.requests_per_minute, 1), ("tokens", key.tokens_per_minute, 0))
        await self._take([Draw(kind, limit, cost) for kind, limit, cost in limits if limit is not None])  # type: ignore[arg-type]

    @property
    def counts_tokens(self) -> bool:
        """Whether the key has a limit of tokens."""
        return self.key.tokens_per_minute is not None

    def may_use(self, model: str) -> bool:
        """Whether the key has this model."""
        return self.key.models is None or model in self.key.models

    def use_model(self, model: object, served: Collection[str]) -> None:
        """Note the model that the request names, and refuse it if the key does not have it. Errors then name only the key's models.

        Whether such a model is served makes no difference, so that the answer does not tell.

        Args:
            model: anything but a string means that none is named. All served models must then be the key's.
            served: names of the models that are served now.

        Raises:
            AccessDeniedError: the key does not have the model.
        """
        visible_models_var.set(self.key.models)
        if isinstance(model, str):
            self._record.model = model[:_MAX_MODEL_CHARS]
            refusal = None if self.may_use(model) else f"this API key does not have access to the model {model[:100]!r}"
        else:
            # While no frontend is known, nobody knows which model would answer.
            may = self.key.models is None or (bool(served) and all(map(self.may_use, served)))
            refusal = None if may else "model: this API key does not have access to all models; name one of /v1/models"
        if refusal is not None:
            raise AccessDeniedError(403, refusal, "model", code="model_not_found", param="model")

    async def admit(self, calls: Sequence[FrontendCall]) -> None:
        """Give calls the key's priority, and reserve their tokens. Raises AccessDeniedError if there are too few."""
        for call in calls:
            _rank(call.request.options, self.key)
        if self.counts_tokens:
            options = [call.request.options for call in calls]
            # Without a limit of its own, an answer's tokens are taken when they are known.
            bounds = (one.sampling.max_tokens * max(1, one.n, one.best_of, one.beam_search.width) for one in options)
            prompts = [_num_tokens(call.request) for call in calls]
            await self._reserve(sum(prompts), sum(bounds))
            self._record.tally = Tally(prompts)

    async def admit_pooling(self, message: PoolingMessage) -> None:
        """The same for a request that generates nothing."""
        _rank(message, self.key)
        if self.counts_tokens:
            # Ten thousand inputs take a while.
            await self._reserve(await run_sized(message.ByteSize(), lambda: _num_pooled_tokens(message), _SMALL_BYTES), 0)

    def keep(self, release: Callable[[], None]) -> Callable[[], None]:
        """Keep the permission beyond the answer: until the returned function, which also calls `release`, is called."""
        self._is_kept = True

        def release_all() -> None:
            release()
            self._close()

        return release_all

    def end(self) -> None:
        """Note that the answer has ended: give the place back, and settle the tokens."""
        if not self._is_kept:
            self._close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._place.close()
        difference, per_minute = self._num_used() - self._reserved, self.key.tokens_per_minute
        if difference and per_minute is not None:
            self._rates.settle(self.key.id, Draw("tokens", per_minute, difference))

    def _num_used(self) -> int:
        """Tokens that the request used, as far as that is known."""
        record = self._record
        if record.usage is not None:
            return record.usage.prompt_tokens + record.usage.completion_tokens
        if record.tally is not None and record.tally.num_output_tokens:
            # The answer broke off.
            return record.tally.num_tokens
        # Of an answer that the client did not wait for, nothing is known but what was reserved. Other requests have failed.
        return self._reserved if record.is_aborted else 0

    async def _reserve(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        if (per_minute := self.key.tokens_per_minute) is not None:
            # A request that is larger than the bucket waits for a full one.
            cost = min(num_prompt_tokens + num_output_tokens, per_minute)
            await self._take([Draw("tokens", per_minute, cost)])
            self._reserved = cost

    async def _take(self, draws: Sequence[Draw]) -> None:
        if not draws:
            return
        taken = await self._rates.take(self.key.id, draws)
        for level in taken.levels:
            values = (str(level.draw.per_minute), str(max(0, math.floor(level.left))), duration(level.reset_s))
            for name, value in zip(_HEADERS[level.draw.kind], values, strict=True):
                self._record.rate_headers[name] = value.encode()
        if not taken.is_allowed:
            raise _over_rate(max(taken.levels, key=lambda level: level.wait_s if level.is_short else -1.0))


def _over_rate(level: Level) -> AccessDeniedError:
    draw = level.draw
    message = (
        f"Rate limit reached for {draw.kind} per minute: limit {draw.per_minute}, left {max(0, math.floor(level.left))}, "
        f"requested {math.ceil(draw.cost)}. Please try again in {duration(level.wait_s)}."
    )
    return AccessDeniedError(429, message, draw.kind, code="rate_limit_exceeded", kind=draw.kind, retry_after_s=level.wait_s)


def duration(seconds: float) -> str:
    """A time as OpenAI's headers have it: 20ms, 8.64s, 6m0s, 1h0m0s. Rounded up to milliseconds."""
    milliseconds = math.ceil(round(seconds * 1000, 3))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _rank(options: generation_pb2.GenerationOptions | PoolingMessage, key: Key) -> None:
    """Let a request run no earlier than its key may. Lower runs first."""
    if key.priority is not None:
        options.priority = max(options.priority, key.priority) if options.HasField("priority") else key.priority


def _num_tokens(request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest) -> int:
    """About as many tokens as the prompt has. Files are not counted: they are not in the message yet."""
    if isinstance(request, generation_pb2.CompleteRequest) and request.HasField("token_ids"):
        return len(request.token_ids.ids)
    return math.ceil(request.ByteSize() / _BYTES_PER_TOKEN)


def _num_pooled_tokens(message: PoolingMessage) -> int:
    if isinstance(message, generation_pb2.ScoreRequest):
        # One query is paired with each document, or each with its own.
        repeats = math.ceil(len(message.documents) / max(1, len(message.queries)))
        return repeats * sum(map(_num_input_tokens, message.queries)) + sum(map(_num_input_tokens, message.documents))
    return sum(map(_num_input_tokens, message.inputs))


def _num_input_tokens(given: generation_pb2.EmbedInput) -> int:
    if given.HasField("token_ids"):
        return len(given.token_ids.ids)
    texts = [given.text, *(part.text for message in given.messages.messages for part in message.content)]
    return math.ceil(sum(map(len, texts)) / _BYTES_PER_TOKEN)
