"""The frontend's expander and chat template for the tiny checkpoints, loaded once per family."""

from __future__ import annotations

import functools
from typing import Any

from triptych_frontend.conversation.turns import ChatTurn
from triptych_frontend.media.item import MediaPart
from triptych_frontend.media.processors.placeholders import PlaceholderExpander
from triptych_frontend.prompt.chat_template import ChatTemplate
from triptych_frontend.service import _load_text_and_media

from support.builders.media_files import checkpoint


@functools.cache
def loaded(family: str) -> tuple[Any, PlaceholderExpander, ChatTemplate]:
    tokenizer, expander, why = _load_text_and_media(checkpoint(family))
    assert expander is not None, why
    placeholders = {modality: expander.placeholder(modality) for modality in expander.modalities}
    return tokenizer, expander, ChatTemplate(tokenizer, None, placeholders, expander.embed_token_ids)


def turn(*modalities: int) -> ChatTurn:
    parts: list[Any] = []
    for number, modality in enumerate(modalities):
        parts += [MediaPart(modality), f" and number {number}\n"]
    return ChatTurn("user", tuple(parts))
