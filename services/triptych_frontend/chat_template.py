"""From a conversation to token ids, through the model's own chat template."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from triptych_common.errors import InvalidRequestError, StartupError

from triptych_frontend.tokenizer import Tokenizer
from triptych_frontend.user_text import UserTextGuard, control_token_pattern

_PROBE = "triptych probe"
#: Template variables that a client may set although they are parameters of transformers' apply_chat_template.
_CLIENT_VARIABLES = {"tools", "documents"}


@dataclass(frozen=True)
class ChatTurn:
    """One message, as the template sees it."""

    role: str
    text: str
    name: str | None = None


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as a prompt."""

    text: str
    token_ids: list[int]


class ChatTemplate:
    """Renders and tokenizes conversations. Any number of threads may use it at once.

    transformers renders, in its Jinja sandbox. Without special-token text in the conversation the token ids are those of
    `apply_chat_template(tokenize=True)`; such text is tokenized as plain text (see `user_text`). Protected are all special
    tokens, and of the other added tokens those with which the template itself marks turns (DeepSeek's `<｜User｜>`); tokens such
    as `<think>` or `<tool_call>` are left alone, as assistant turns of a history contain them on purpose.

    Args:
        source: a Jinja template to use instead of the model's own.

    Raises:
        StartupError: the template has a syntax error.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._source = source or _own_template(tokenizer)
        if self._source is None:
            return
        try:
            self._takes_parts = not self._shows_probe(_PROBE) and self._shows_probe([{"type": "text", "text": _PROBE}])
        except jinja2.TemplateSyntaxError as error:
            raise StartupError(f"the chat template has a syntax error in line {error.lineno}: {error.message}") from error
        added = tokenizer.added_tokens
        turns = self._probe_turns()
        control = {token_id: token for token_id, token in added.items() if token.special or token.content in turns}
        self._control_ids = control.keys()
        normalizer = tokenizer.backend.normalizer
        matched_normalized = normalizer is not None and any(token.normalized for token in control.values())
        self._normalize = normalizer.normalize_str if matched_normalized else None
        contents = [token.content for token in control.values()]
        self._control_pattern = control_token_pattern(contents + [self._normalize(text) for text in contents if self._normalize])

    def render(
        self,
        turns: Sequence[ChatTurn],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> RenderedChat:
        """The prompt of a conversation.

        Args:
            variables: further variables for the template; may name neither parameters of the rendering nor `messages`.

        Raises:
            InvalidRequestError: the model has no template, or the template or its sandbox refused.
        """
        if self._source is None:
            raise InvalidRequestError("this model has no chat template; use Complete, or start the frontend with --chat-template")
        for name in variables.keys() & _reserved_variables():
            raise InvalidRequestError(f"template_kwargs_json must not set {name!r}", field="template_kwargs_json", value=name)
        guard = UserTextGuard(self._control_pattern, self._normalize)
        try:
            rendered = self._apply(
                [self._message(turn, guard) for turn in turns],
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **guard.protect(dict(variables)),
            )
        # A template is code, and may fail in every way in which code can: undefined variables, types, raise_exception ...
        except Exception as error:
            reason = guard.restore(str(error)) or type(error).__name__
            raise InvalidRequestError(f"the model's chat template refused the conversation: {reason}", field="messages") from error
        try:
            token_ids = self._tokenizer.encode_pieces(guard.pieces(rendered), self._control_ids)
        except ValueError as error:
            raise InvalidRequestError(str(error), field="messages") from error
        return RenderedChat(guard.restore(rendered), token_ids)

    def _message(self, turn: ChatTurn, guard: UserTextGuard) -> dict[str, Any]:
        text = guard.protect(turn.text)
        content = [{"type": "text", "text": text}] if self._takes_parts else text
        message = {"role": turn.role, "content": content}
        return message if turn.name is None else message | {"name": guard.protect(turn.name)}

    def _apply(self, messages: list[dict[str, Any]], **options: Any) -> str:
        text: str = self._tokenizer.hf.apply_chat_template(messages, chat_template=self._source, tokenize=False, **options)
        return text

    def _shows_probe(self, content: Any) -> bool:
        """Whether the template prints content of this form. Most take a string, those of multimodal models a list of parts."""
        try:
            return _PROBE in self._apply([{"role": "user", "content": content}])
        except jinja2.TemplateSyntaxError:
            raise
        except Exception:  # see render
            return False

    def _probe_turns(self) -> str:
        """A short conversation as rendered: it shows the tokens that the template marks turns with."""
        user, assistant = ChatTurn("user", _PROBE), ChatTurn("assistant", _PROBE)
        guard = UserTextGuard(control_token_pattern(()))
        for turns in ([ChatTurn("system", _PROBE), user, assistant, user], [user, assistant, user], [user]):
            try:
                return self._apply([self._message(turn, guard) for turn in turns])
            except Exception:  # noqa: S112 - see render; some templates know no system turn
                continue
        return ""


def _own_template(tokenizer: Tokenizer) -> str | None:
    try:
        template: str | None = tokenizer.hf.get_chat_template()
    except ValueError:  # none, or several and no default among them
        return None
    return template


@functools.cache
def _reserved_variables() -> frozenset[str]:
    """Names that mean something to the rendering itself: a client must not bring a template of its own through them."""
    from transformers import PreTrainedTokenizerBase  # late: see no_torch

    parameters = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    return parameters - _CLIENT_VARIABLES | {"messages"}
