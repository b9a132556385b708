"""From a conversation to token ids, through the model's own chat template."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta
from triptych.errors import InvalidRequestError, StartupError
from triptych.v1 import common_pb2

from triptych_frontend.conversation.normalise import TemplateTraits, fitted
from triptych_frontend.conversation.tools import template_tool_calls
from triptych_frontend.conversation.turns import ChatTurn
from triptych_frontend.errors import refusal
from triptych_frontend.media.item import MODALITY_NAMES, Expansion, MediaPart
from triptych_frontend.media.processors.placeholders import placeholder_ranges
from triptych_frontend.prompt.probes import PROBE_TOOLS, TemplateProbes
from triptych_frontend.prompt.raw_prompt import TokenizedPrompt
from triptych_frontend.tokens.tokenizer import Tokenizer
from triptych_frontend.tokens.user_text import Piece, UserTextGuard, control_token_pattern

#: Template variables that a client may set although they are parameters of transformers' apply_chat_template. `tools` is not one of
#: them: a request may set tools only in its own field.
_CLIENT_VARIABLES = {"documents"}


class ChatTemplate:
    """Renders and tokenizes conversations. Thread-safe.

    transformers renders the template, in its Jinja sandbox. Unless the conversation contains the text of special tokens, the token
    ids are those of `apply_chat_template(tokenize=True)`. Such text is tokenized as plain text (see `tokens.user_text`). This
    applies to all special tokens, and to other added tokens with which the template marks turns (DeepSeek's `<｜User｜>`). It does
    not apply to tokens such as `<think>` or `<tool_call>`, because assistant turns of a history contain them on purpose.

    Args:
        source: a Jinja template to use instead of the model's own.
        placeholders: for a multimodal model: modality -> the text for an item before it is expanded.
        embed_token_ids: tokens whose embeddings come from an encoder.

    Raises:
        StartupError: the template has a syntax error.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str | None = None,
        placeholders: Mapping[common_pb2.Modality, str] | None = None,
        embed_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        #: The template's text; None if the model has none.
        self.source = source or _own_template(tokenizer)
        #: For conversations with tools: some tokenizers have a template of its own for them.
        self.tool_source = source or _own_template(tokenizer, PROBE_TOOLS)
        #: Modality -> the text for an item before it is expanded.
        self.placeholders = placeholders or {}
        self.embed_token_ids = embed_token_ids
        self._placeholder_pattern = control_token_pattern(self.placeholders.values())
        #: Whether tools can be shown to the model, and the variables that the template reads.
        self.takes_tools = False
        #: What the template shows of a conversation.
        self.traits = TemplateTraits()
        self.variables: frozenset[str] = frozenset()
        if self.source is None:
            return
        try:
            probes = TemplateProbes(self._apply)
            self._takes_parts = probes.takes_parts
            # Other templates take a string that contains placeholders.
            self._places_media_parts = probes.shows_media(self.placeholders)
            self.takes_tools = probes.shows_tools()
            self._takes_tool_calls = probes.shows_tool_calls()
            self.traits = probes.traits()
            turns = probes.turn_markers()
            self.variables = _variables(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
        added = tokenizer.added_tokens
        media = {tokenizer.backend.id_to_token(token_id) for token_id in embed_token_ids} | set(self.placeholders.values())
        control = {
            token_id: token
            for token_id, token in added.items()
            if token.special or token.content in turns or token.content in media
        }
        self._control_ids = control.keys() | embed_token_ids
        normalizer = tokenizer.backend.normalizer
        matched_normalized = normalizer is not None and any(token.normalized for token in control.values())
        self._normalize = normalizer.normalize_str if matched_normalized else None
        contents = [token.content for token in control.values()] + [text for text in media if text]
        self._control_pattern = control_token_pattern(contents + [self._normalize(text) for text in contents if self._normalize])

    def render(
        self,
        turns: Sequence[ChatTurn],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
        expansions: Sequence[tuple[common_pb2.Modality, Expansion]] = (),
        tools: list[dict[str, Any]] | None = None,
    ) -> TokenizedPrompt:
        """The prompt of a conversation.

        Args:
            variables: further variables for the template. `messages` and names of the rendering's own parameters are refused.
            expansions: the expansions of the turns' media, in the order of the turns.
            tools: in OpenAI's form.

        Raises:
            InvalidRequestError: the model has no template, the template has no place for tools or calls, or it raised an error.
        """
        if self.source is None:
            raise InvalidRequestError("this model has no chat template; use Complete, or start the frontend with --chat-template")
        if tools and not self.takes_tools:
            raise InvalidRequestError("the model's chat template has no place for tools", field="tools")
        called = next((index for index, turn in enumerate(turns) if turn.tool_calls), None)
        if called is not None and not self._takes_tool_calls:
            field = f"messages[{called}].tool_calls"
            raise InvalidRequestError("the model's chat template has no place for tool calls", field=field)
        for name in variables.keys() & _reserved_variables():
            raise refusal("template_kwargs", f"must not set {name!r}", value=name)
        guard = UserTextGuard(self._control_pattern, self._normalize)
        try:
            rendered = self._apply(
                [self._message(turn, guard) for turn in fitted(turns, self.traits)],
                guard.protect(tools),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **guard.protect(dict(variables)),
            )
        # A template is code, and may raise any exception: undefined variables, type errors, raise_exception ...
        except Exception as error:
            reason = guard.restore(str(error)) or type(error).__name__
            raise InvalidRequestError(f"the model's chat template refused the conversation: {reason}", field="messages") from error
        pieces, order = self._expanded(guard.pieces(rendered), expansions)
        try:
            token_ids = self._tokenizer.encode_pieces(pieces, self._control_ids)
            num_embeds = [(index, expansions[index][1].num_embeds) for index in order]
            placeholders = placeholder_ranges(token_ids, self.embed_token_ids, num_embeds) if order else []
        except ValueError as error:
            raise InvalidRequestError(str(error), field="messages") from error
        return TokenizedPrompt(guard.restore(rendered), token_ids, placeholders=placeholders)

    def _expanded(
        self, pieces: Iterable[Piece], expansions: Sequence[tuple[common_pb2.Modality, Expansion]]
    ) -> tuple[list[Piece], list[int]]:
        """The pieces with expanded placeholders, and the indices of the media in the order of the rendered text.

        Raises:
            InvalidRequestError: the template did not write one placeholder per item.
        """
        if not expansions:
            return list(pieces), []
        of_text = {text: modality for modality, text in self.placeholders.items()}
        waiting: dict[common_pb2.Modality, list[int]] = {modality: [] for modality in self.placeholders}
        for index, (modality, _) in enumerate(expansions):
            waiting[modality].append(index)
        order: list[int] = []

        def expand(match: re.Match[str]) -> str:
            items = waiting[of_text[match[0]]]
            if not items:
                raise InvalidRequestError("the model's chat template places more media than the messages have", field="messages")
            order.append(items.pop(0))
            return expansions[order[-1]][1].text

        # Placeholders in users' text are plain text.
        expanded = [p if p.is_plain else Piece(self._placeholder_pattern.sub(expand, p.text), False) for p in pieces]
        left = next((modality for modality, items in waiting.items() if items), None)
        if left is not None:
            name = MODALITY_NAMES[left]
            raise InvalidRequestError(f"the model's chat template has no place for {name} items here", field="messages", value=name)
        return expanded, order

    def _message(self, turn: ChatTurn, guard: UserTextGuard) -> dict[str, Any]:
        texts = [part if isinstance(part, str) else "" for part in turn.parts]
        if len(turn.parts) > 1 and _joins_to_control_token(texts, self._control_pattern):
            protected = [guard.as_plain(text) for text in texts]
        else:
            protected = [guard.protect(text) for text in texts]
        if self._takes_parts or (turn.media and self._places_media_parts):
            content: Any = [
                {"type": MODALITY_NAMES[part.modality]} if isinstance(part, MediaPart) else {"type": "text", "text": text}
                for part, text in zip(turn.parts, protected, strict=True)
            ]
        else:
            content = "\n".join(
                self.placeholders[part.modality] if isinstance(part, MediaPart) else text
                for part, text in zip(turn.parts, protected, strict=True)
            )
        further = {
            "name": turn.name,
            "reasoning_content": turn.reasoning,
            "tool_calls": template_tool_calls(turn.tool_calls, self.traits.arguments_are_objects) or None,
            "tool_call_id": turn.tool_call_id,
        }
        message = {"role": turn.role, "content": content}
        return message | {name: guard.protect(value) for name, value in further.items() if value is not None}

    def _apply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any) -> str:
        source = self.tool_source if tools else self.source
        text: str = self._tokenizer.hf.apply_chat_template(messages, tools, chat_template=source, tokenize=False, **options)
        return text


def _joins_to_control_token(texts: Sequence[str], pattern: re.Pattern[str]) -> bool:
    """Whether joined texts would contain a new control token. Templates that place media first join texts."""
    alone = sum(len(pattern.findall(text)) for text in texts)
    strips = (str, str.strip, str.lstrip, str.rstrip)
    return any(len(pattern.findall("".join(map(strip, texts)))) != alone for strip in strips)


def _variables(source: str) -> frozenset[str]:
    """The variables that a template reads."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # late import: see no_torch

    environment = _compile_jinja_template(source).environment
    return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))


def _own_template(tokenizer: Tokenizer, tools: list[dict[str, Any]] | None = None) -> str | None:
    try:
        template: str | None = tokenizer.hf.get_chat_template(tools=tools)
    except ValueError:  # there is no template, or there are several without a default
        return None
    return template


@functools.cache
def _reserved_variables() -> frozenset[str]:
    """Names of the rendering's own parameters. With them a client could set its own template."""
    from transformers import PreTrainedTokenizerBase  # late import: see no_torch

    parameters = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    return parameters - _CLIENT_VARIABLES | {"messages"}
