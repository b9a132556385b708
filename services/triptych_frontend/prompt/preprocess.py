"""From requests to prompts, in a thread pool. The event loop neither renders nor tokenizes.

A round trip to the pool takes 20 to 30 us on one core of a Zen 5. Rendering a one-line chat takes 20 us, tokenizing its 178
characters takes 45 us, and tokenizing 10,000 characters takes 2.8 ms. Running short texts on the event loop would save little.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any, TypeVar

from google.protobuf import struct_pb2
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.principal import ANONYMOUS, Principal
from triptych_common.rpc.structs import from_struct

from triptych_frontend.conversation.reasoning import reasoning_variables
from triptych_frontend.conversation.tools import ToolOptions, tool_options
from triptych_frontend.conversation.truncation import room_for_prompt, shortened
from triptych_frontend.conversation.turns import ChatTurn, media_items, prompt_end, turns_of
from triptych_frontend.errors import check_count, refusal
from triptych_frontend.media.budget import MediaHold
from triptych_frontend.media.item import PreparedMedia
from triptych_frontend.media.preparer import MediaPreparer
from triptych_frontend.prompt.chat_template import ChatTemplate
from triptych_frontend.prompt.constraints import ConstraintChecker
from triptych_frontend.prompt.infill import Infill, infill_for
from triptych_frontend.prompt.interruptible import Interrupted, InterruptibleJob
from triptych_frontend.prompt.raw_prompt import RawPrompts, TokenizedPrompt, decode_with_starts
from triptych_frontend.prompt.speech import SpeechPrompts, UnknownLanguage
from triptych_frontend.settings import FrontendSettings
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer
from triptych_frontend.tokens.tokenizer import Tokenizer

#: Most ids that are decoded on the event loop (0.6 us each). A round trip to the pool would take longer than that.
_MAX_INLINE_TOKENS = 32
#: Most messages and parts of a conversation, and most characters of JSON, that are read on the event loop.
_MAX_INLINE_PARTS = 256
_MAX_INLINE_CHARS = 32 * 1024
T = TypeVar("T")


@dataclass(frozen=True)
class Prompt(TokenizedPrompt):
    """The input that the engine continues."""

    #: Time of rendering and tokenizing, including the wait for a thread, in seconds.
    preprocess_s: float = 0.0
    #: Media of the prompt, in the order of the request.
    media: list[PreparedMedia] = field(default_factory=list)
    #: The media files' share of the budget; None without media.
    hold: MediaHold | None = None
    #: The tools that the prompt shows.
    tools: ToolOptions = field(default_factory=ToolOptions)
    #: The language of the audio, if it has to be found out.
    language: UnknownLanguage | None = None

    def release(self) -> None:
        """Return the files' bytes to the budget. May be called twice."""
        if self.hold is not None:
            self.hold.release()


@dataclass(eq=False, repr=False)
class Preprocessor:
    """Renders, tokenizes and decodes in `num_tokenizer_threads` threads.

    Args:
        vocab_size: clients' token ids must be smaller.
        media: prepares images, audio and video.
        can_reason: the model tells reasoning apart from its answer.
        model_name: for errors.
        speech: makes the prompts of a model that only writes down speech; None for other models.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    settings: FrontendSettings
    vocab_size: int
    media: MediaPreparer
    can_reason: bool = False
    model_name: str = "the model"
    speech: SpeechPrompts | None = None

    def __post_init__(self) -> None:
        self._infill = Infill.of(self.tokenizer)
        self._raw = RawPrompts(self.tokenizer, self.template.placeholders, self.template.embed_token_ids)
        self._pool = ThreadPoolExecutor(self.settings.num_tokenizer_threads, thread_name_prefix="tokenizer")
        self.constraints = ConstraintChecker(self.tokenizer, self.vocab_size, self._pool)

    @property
    def can_infill(self) -> bool:
        """Whether prompts may have a suffix."""
        return self._infill is not None

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def chat(
        self,
        request: generation_pb2.ChatRequest,
        principal: Principal = ANONYMOUS,
        with_offsets: bool = False,
        max_model_len: int | None = None,
    ) -> Prompt:
        """The prompt of a conversation. The caller releases it.

        Args:
            principal: the caller. Principals share neither media names nor embeddings.
            with_offsets: compute where each token's text starts, for log probabilities of the prompt.
            max_model_len: the context, for `drop_oldest_messages`.

        Raises:
            InvalidRequestError: the request is at fault.
            QueueFullError, ServiceUnavailableError: see `MediaPreparer.prepare`.
        """
        if self.speech is not None:
            return await self._transcription(self.speech, request, principal)
        start_s = time.perf_counter()
        read = partial(self._read, request)
        turns, tools, items, variables = read() if _is_short(request) else await self.run(read)
        add_generation_prompt, continue_final_message = prompt_end(request, turns[-1])
        hold = self.media.budget.hold()
        with contextlib.ExitStack() as on_error:
            on_error.callback(hold.release)
            media = await self.media.prepare(items, principal, request.options.cache_salt, hold) if items else []
            expansions = [(item.modality, item.expansion) for item in media]

            def render(kept: list[ChatTurn], is_left: Sequence[bool]) -> Awaitable[TokenizedPrompt]:
                left = list(compress(expansions, is_left))
                return self._render(
                    lambda: self.template.render(
                        kept, variables, add_generation_prompt, continue_final_message, left, tools.rendered
                    )
                )

            chat = await render(turns, [True] * len(media))
            if request.drop_oldest_messages and max_model_len is not None:
                room = room_for_prompt(request.options.sampling, max_model_len)
                chat, is_left = await shortened(chat, turns, room, render)
                media = list(compress(media, is_left))
            if not chat.token_ids:
                raise InvalidRequestError("the chat template rendered an empty prompt", field="messages")
            offsets = (await self._decode_with_starts(chat.token_ids, True))[1] if with_offsets else None
            on_error.pop_all()
        elapsed_s = time.perf_counter() - start_s
        return Prompt(chat.text, chat.token_ids, offsets, chat.placeholders, (), elapsed_s, media, hold, tools)

    async def _transcription(self, speech: SpeechPrompts, request: generation_pb2.ChatRequest, principal: Principal) -> Prompt:
        """The prompt for what is said in the one audio item of a conversation."""
        start_s, asked, items = time.perf_counter(), speech.check(request), media_items(request.messages)
        check_count("messages", len(items), 1, "audio item", least=1)
        self.check_length(len(asked.prompt), "transcription.prompt")
        token_ids, language = await self.run(lambda: speech.prompt(asked))
        hold = self.media.budget.hold()
        with contextlib.ExitStack() as on_error:
            on_error.callback(hold.release)
            media = await self.media.prepare(items, principal, request.options.cache_salt, hold)
            text, _ = await self._decode_with_starts(token_ids, False)
            on_error.pop_all()
        return Prompt(text, token_ids, None, [], (), time.perf_counter() - start_s, media, hold, language=language)

    def _read(
        self, request: generation_pb2.ChatRequest
    ) -> tuple[list[ChatTurn], ToolOptions, list[tuple[str, common_pb2.MediaItem]], dict[str, Any]]:
        """The turns, tools and media of a conversation, and the template's variables. Raises InvalidRequestError."""
        self.check_length(sum(tool.ByteSize() for tool in request.tools), "tools")
        turns, tools = turns_of(request.messages), tool_options(request)
        num_chars = sum(turn.num_chars for turn in turns) + sum(tool.ByteSize() for tool in request.tools)
        self.check_length(num_chars + request.template_kwargs.ByteSize(), "messages")
        variables = reasoning_variables(request.reasoning, self.can_reason, self.template.variables)
        variables |= _template_variables(request.template_kwargs)
        return turns, tools, media_items(request.messages), variables

    async def of_tokens(self, prompt: Prompt, token_ids: list[int], with_offsets: bool) -> Prompt:
        """The prompt with other tokens, which leave its media where they are."""
        text, offsets = await self._decode_with_starts(token_ids, with_offsets)
        return replace(prompt, text=text, token_ids=token_ids, offsets=offsets)

    async def complete(
        self, request: generation_pb2.CompleteRequest, principal: Principal = ANONYMOUS, with_offsets: bool = False
    ) -> Prompt:
        """The prompt of a completion. The caller releases it. Arguments and errors are those of `chat`.

        Raises:
            UnimplementedError: media beside token ids, for a model whose placeholder is not one token.
        """
        start_s = time.perf_counter()
        if self.speech is not None:
            self.speech.check(request)
        given = self._given(request)
        add_special_tokens = request.add_special_tokens if request.HasField("add_special_tokens") else True
        work = partial(self._raw.tokenized, given, add_special_tokens=add_special_tokens, with_offsets=with_offsets)
        if request.suffix:
            infill = infill_for(request, self._infill, self.model_name)
            self.check_length(len(request.text) + len(request.suffix), "suffix")
            work = partial(infill.tokenized, request.text, request.suffix, add_special_tokens)
        hold, media, modalities = self.media.budget.hold(), list[PreparedMedia](), [item.modality for item in request.media]
        with contextlib.ExitStack() as on_error:
            on_error.callback(hold.release)
            if modalities:
                # Compare with the prompt first, so that nothing is fetched in vain.
                places = await self.run(lambda: self._raw.places(given, modalities))
                items = [(f"media[{index}]", item) for index, item in enumerate(request.media)]
                media = await self.media.prepare(items, principal, request.options.cache_salt, hold)
                work = partial(work, places, [(item.modality, item.expansion) for item in media])
            prompt = await self.run(work)
            if not prompt.token_ids:
                message = "the prompt is empty; the model needs at least one token"
                raise InvalidRequestError(message, field="prompt", limit=1, value=0)
            on_error.pop_all()
        elapsed_s = time.perf_counter() - start_s
        fields = prompt.text, prompt.token_ids, prompt.offsets, prompt.placeholders, prompt.stop_token_ids
        return Prompt(*fields, elapsed_s, media, hold)

    def _given(self, request: generation_pb2.CompleteRequest) -> str | list[int]:
        """The text or the token ids of a completion. Raises InvalidRequestError."""
        kind = request.WhichOneof("prompt")
        if kind == "text":
            self.check_length(len(request.text), "text")
            return request.text
        if kind is None:
            raise InvalidRequestError("a prompt is needed: text or token_ids", field="prompt")
        token_ids = list(request.token_ids.ids)
        # The token of a placeholder may lie behind the vocabulary.
        known = self._raw.token_ids if request.media else ()
        checked = [0 if token_id in known else token_id for token_id in token_ids] if known else token_ids
        self.check_token_ids(checked, "token_ids.ids")
        return token_ids

    async def tokenize(self, text: str, add_special_tokens: bool, parse_special_tokens: bool) -> tuple[list[int], list[str]]:
        """Token ids, and the vocabulary's strings for them. Raises InvalidRequestError."""
        self.check_length(len(text), "text")

        def work() -> tuple[list[int], list[str]]:
            tokenizer = self.tokenizer
            if parse_special_tokens:
                token_ids = tokenizer.encode(text, add_special_tokens)
            else:
                token_ids = tokenizer.encode_user_text(text, add_special_tokens)
            return token_ids, tokenizer.tokens(token_ids)

        return await self.run(work)

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of a whole sequence. Raises InvalidRequestError."""
        self.check_token_ids(token_ids, "token_ids")
        return await self.run(lambda: self.tokenizer.decode(token_ids, skip_special_tokens))

    async def detokenize_next(self, stream: IncrementalDetokenizer, token_ids: Sequence[int]) -> str:
        """The text that becomes certain with more ids of a growing sequence. Raises InvalidRequestError."""
        self.check_token_ids(token_ids, "token_ids")
        if len(token_ids) <= _MAX_INLINE_TOKENS:
            return "".join(map(stream.feed, token_ids))
        return await self.run(lambda: "".join(map(stream.feed, token_ids)))

    def check_token_ids(self, token_ids: Sequence[int], field: str) -> None:
        """Raise InvalidRequestError, which names the first id that is not in the vocabulary."""
        if not token_ids or max(token_ids) < self.vocab_size:
            return
        index, value = next((index, value) for index, value in enumerate(token_ids) if value >= self.vocab_size)
        problem = f"must be below the vocabulary's size of {self.vocab_size}; given: {value}"
        raise refusal(f"{field}[{index}]", problem, self.vocab_size - 1, value)

    async def _render(self, work: Callable[[], TokenizedPrompt]) -> TokenizedPrompt:
        """Like `run`, but with a time limit for the template, which also applies after the caller was cancelled."""
        loop = asyncio.get_running_loop()
        job = InterruptibleJob(work)
        timer = loop.call_later(self.settings.template_timeout_s, job.interrupt)
        try:
            chat = await loop.run_in_executor(self._pool, job)
        except Interrupted as error:
            limit_s = self.settings.template_timeout_s
            message = f"rendering the chat template took longer than {limit_s:g} s"
            raise InvalidRequestError(message, field="messages", limit=limit_s) from error
        except Exception:
            timer.cancel()
            raise
        timer.cancel()
        return chat

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def check_length(self, num_chars: int, field: str) -> None:
        """Raise InvalidRequestError if a text is too long to be tokenized."""
        check_count(field, num_chars, self.settings.max_prompt_chars, "characters")

    async def _decode_with_starts(self, token_ids: list[int], with_offsets: bool) -> tuple[str, list[int] | None]:
        return await self.run(lambda: decode_with_starts(self.tokenizer, token_ids, with_offsets))


def _is_short(request: generation_pb2.ChatRequest) -> bool:
    """Whether a conversation can be read on the event loop, in a few milliseconds."""
    num_parts = sum(1 + len(message.content) + len(message.tool_calls) for message in request.messages)
    num_chars = sum(len(tool.parameters_json_schema) for tool in request.tools)
    return num_parts <= _MAX_INLINE_PARTS and num_chars + request.template_kwargs.ByteSize() <= _MAX_INLINE_CHARS


def _template_variables(struct: struct_pb2.Struct) -> dict[str, Any]:
    field = "template_kwargs"
    try:
        return from_struct(struct)
    except ValueError as error:
        raise refusal(field, str(error)) from error
