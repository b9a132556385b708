"""From the inputs of Embed, Score and Classify to token ids: in batches, in a thread pool; cut or refused if they are too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triptych.errors import ContextLengthError, TriptychError
from triptych.v1 import generation_pb2
from triptych_common.rpc.principal import Principal

from triptych_frontend.errors import refusal, renamed
from triptych_frontend.generation.statistics import CallMeter
from triptych_frontend.prompt.preprocess import Preprocessor, Prompt
from triptych_frontend.served_model import ServedModel

#: Texts that are tokenized at once. Between two batches, the threads serve other calls.
_BATCH = 512


@dataclass(frozen=True, slots=True)
class Call:
    """A call: who asks, and how."""

    principal: Principal
    #: The client's own salt. Callers share media names and embeddings only within a principal and a salt.
    cache_salt: str
    #: Lower runs first.
    priority: int
    meter: CallMeter
    #: Takes what must be called at its end, or when it fails.
    on_exit: Callable[[Callable[[], None]], object]


@dataclass(slots=True)
class Input:
    """An input as an engine gets it."""

    token_ids: list[int]
    #: Index of the first token of the second text of a pair, where token types differ; else 0.
    second_text_start: int = 0
    #: The prompt of a conversation with media. Its owner releases it.
    prompt: Prompt | None = None
    #: What stands before the fields of the prompt's media in the request.
    field: str = ""


@dataclass(frozen=True, slots=True)
class PairFormat:
    """The tokens around two texts, and whether the second one has token type 1."""

    before: list[int]
    between: list[int]
    after: list[int]
    has_types: bool

    @property
    def num_added(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


class PoolingInputs:
    """Tokenizes inputs.

    Args:
        preprocessor: owns the threads, and renders conversations.
        prompt: stands before each text that is no part of a pair.
    """

    def __init__(self, preprocessor: Preprocessor, model: ServedModel, prompt: str = "") -> None:
        self._preprocessor, self._tokenizer, self._model, self._prompt = preprocessor, preprocessor.tokenizer, model, prompt

    async def single(
        self,
        inputs: Sequence[generation_pb2.EmbedInput],
        field: str,
        call: Call,
        *,
        truncate_to: int | None,
        add_special_tokens: bool = True,
    ) -> list[Input]:
        """Token ids of each input.

        Args:
            field: the inputs' name in errors.
            truncate_to: cut inputs to this many tokens, of which the tokens that the tokenizer adds are the last to go; 0 is as
                many as the model takes. The checkpoint's `truncation_side` says which ones a text loses.
                Inputs with media are not cut.

        Raises:
            InvalidRequestError, ContextLengthError: an input is at fault; the error names its index.
            QueueFullError, ServiceUnavailableError: see `MediaPreparer.prepare`.
        """
        limit = _limit(truncate_to, self._model.info.max_model_len)
        found = [Input([]) for _ in inputs]
        texts = []
        for index, one in enumerate(inputs):
            await _let_others_run(index)
            kind, name = one.WhichOneof("input"), f"{field}[{index}]"
            if kind == "text":
                self._preprocessor.check_length(len(one.text), name)
                texts.append(index)
            elif kind == "token_ids":
                found[index].token_ids = list(one.token_ids.ids)
                self._preprocessor.check_token_ids(found[index].token_ids, name)
            elif kind == "messages":
                found[index] = await self._chat(one.messages, name, call)
            else:
                raise refusal(name, "is empty; it needs a text, token ids or messages")
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            encoded = await self._encode([self._prompt + inputs[index].text for index in batch], add_special_tokens)
            for index, ids in zip(batch, encoded, strict=True):
                found[index].token_ids = ids
        added = set(texts) if add_special_tokens else set[int]()
        for index, input_ in enumerate(found):
            if truncate_to is not None and len(input_.token_ids) > limit and input_.prompt is None:
                input_.token_ids = self._cut(input_.token_ids, limit, has_added=index in added)
            _check_length(input_, f"{field}[{index}]", limit)
        return found

    async def pairs(self, first: Sequence[str], second: Sequence[str], field: str, *, truncate_to: int | None) -> list[Input]:
        """Token ids of each pair of texts.

        Arguments and errors are those of `single`. Of a pair that is too long, the longer text is cut first.
        """
        max_tokens = self._model.info.max_model_len
        limit, form = _limit(truncate_to, max_tokens), self._pair_format()
        if truncate_to is not None and limit <= form.num_added:
            problem = f"must be more than the {form.num_added} tokens that the tokenizer adds; given: {limit}"
            raise refusal("truncate_to", problem, form.num_added + 1, limit)
        distinct = list(dict.fromkeys([*first, *second]))
        encoded: dict[str, list[int]] = {}
        for start in range(0, len(distinct), _BATCH):
            batch = distinct[start : start + _BATCH]
            encoded.update(zip(batch, await self._encode(batch, False), strict=True))
        found = []
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            await _let_others_run(index)
            a, b = encoded[one], encoded[other]
            if truncate_to is not None:
                num_a, num_b = _cut_lengths(len(a), len(b), limit - form.num_added)
                a, b = self._kept(a, num_a), self._kept(b, num_b)
            second_text_start = len(form.before) + len(a) + len(form.between) if form.has_types else 0
            found.append(Input([*form.before, *a, *form.between, *b, *form.after], second_text_start))
            _check_length(found[-1], f"{field}[{index}]", max_tokens)
        return found

    async def _encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        return await self._preprocessor.run(lambda: self._tokenizer.encode_batch(texts, add_special_tokens))

    async def _chat(self, messages: generation_pb2.ChatMessages, name: str, call: Call) -> Input:
        request = generation_pb2.ChatRequest(
            messages=messages.messages,
            template_kwargs=messages.template_kwargs,
            add_generation_prompt=messages.add_generation_prompt,
            continue_final_message=messages.continue_final_message,
            options=generation_pb2.GenerationOptions(cache_salt=call.cache_salt),
        )
        field = f"{name}.messages"
        try:
            prompt = await self._preprocessor.chat(request, call.principal)
        except TriptychError as error:
            raise below(field, error) from error
        call.on_exit(prompt.release)
        return Input(prompt.token_ids, prompt=prompt if prompt.media else None, field=field)

    def _cut(self, ids: list[int], limit: int, *, has_added: bool) -> list[int]:
        before, after = self._tokenizer.around_text if has_added else ([], [])
        num_text = limit - len(before) - len(after)
        if num_text < 0:
            return self._kept(ids, limit)
        return [*before, *self._kept(ids[len(before) : len(ids) - len(after)], num_text), *after]

    def _kept(self, ids: list[int], count: int) -> list[int]:
        """The first tokens, or the last ones if the checkpoint's `truncation_side` is left."""
        return ids[max(len(ids) - count, 0) :] if self._tokenizer.cuts_left else ids[:count]

    def _pair_format(self) -> PairFormat:
        backend = self._tokenizer.backend
        a, b = (self._tokenizer.encode(letter, add_special_tokens=False) for letter in ("a", "b"))
        pair = backend.encode_batch([("a", "b")], add_special_tokens=True)[0]
        ids, sequences = pair.ids, pair.sequence_ids
        start_a, start_b = sequences.index(0), sequences.index(1)
        end_a, end_b = start_a + len(a), start_b + len(b)
        return PairFormat(ids[:start_a], ids[end_a:start_b], ids[end_b:], has_types=pair.type_ids[start_b] == 1)


async def _let_others_run(index: int) -> None:
    """Give other calls the event loop now and then: 512 inputs take about a millisecond."""
    if index % _BATCH == _BATCH - 1:
        await asyncio.sleep(0)


def _limit(truncate_to: int | None, max_tokens: int) -> int:
    if truncate_to is None or truncate_to == 0:
        return max_tokens
    if truncate_to > max_tokens:
        problem = f"must be at most {max_tokens}, the longest input that the model takes; given: {truncate_to}"
        raise refusal("truncate_to", problem, max_tokens, truncate_to)
    return truncate_to


def _check_length(input_: Input, field: str, max_tokens: int) -> None:
    num_tokens = len(input_.token_ids)
    if not num_tokens:
        raise refusal(field, "is empty; the model needs at least one token", 1, 0)
    if num_tokens > max_tokens:
        advice = "media cannot be cut" if input_.prompt is not None else "truncate_to cuts longer inputs"
        message = f"{field} has {num_tokens} tokens; at most {max_tokens} are taken, and {advice}"
        raise ContextLengthError(message, field=field, limit=max_tokens, value=num_tokens)


def below(field: str, error: TriptychError) -> TriptychError:
    """An error about a conversation, with the place of the conversation in the request before the field."""
    if not error.field:
        return error
    path = f"{field}.{error.field}"
    return renamed(error, path, error.message.replace(error.field, path))


def _cut_lengths(a: int, b: int, limit: int) -> tuple[int, int]:
    """How many tokens of two texts are kept, `limit` at most: the longer one is cut first, then both to the same length."""
    if a + b <= limit:
        return a, b
    shorter = min(a, b)
    longer = max(shorter, limit - shorter)
    if shorter + longer > limit:
        shorter, longer = limit // 2, limit - limit // 2
    return (shorter, longer) if a <= b else (longer, shorter)
