"""Incremental detokenization gives what decoding everything at once gives, in whole characters."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.tokenizer import IM_END_ID, IM_START_ID, byte_level_tokenizer, metaspace_tokenizer
from transformers import PreTrainedTokenizerFast
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer
from triptych_frontend.tokens.tokenizer import Tokenizer

#: Letters with and without merges, spaces, combining marks, characters of two, three and four bytes, and joined emoji.
TEXTS = st.text("aTheo \n.é\u0301ß漢€😀👩\u200d🚀\ufffd", max_size=30)


@cache
def byte_level() -> Tokenizer:
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer()))


@cache
def metaspace() -> Tokenizer:
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=metaspace_tokenizer()))


def stream(tokenizer: Tokenizer, token_ids: list[int], prompt: list[int] = [], skip: bool = True) -> list[str]:  # noqa: B006
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    return [*(detokenizer.feed(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("make", [byte_level, metaspace])
@given(text=TEXTS)
def test_pieces_add_up_to_the_text(make, text: str) -> None:
    tokenizer = make()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(stream(tokenizer, token_ids)) == tokenizer.decode(token_ids, skip_special_tokens=True)


@given(text=TEXTS.filter(lambda text: "\ufffd" not in text))
def test_only_whole_characters_are_passed_on(text: str) -> None:
    tokenizer = byte_level()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert "\ufffd" not in "".join(stream(tokenizer, token_ids))


@given(token_ids=st.lists(st.integers(0, 511), max_size=40), skip=st.booleans())
def test_any_ids_at_all_decode_as_they_do_at_once(token_ids: list[int], skip: bool) -> None:
    tokenizer = byte_level()
    assert "".join(stream(tokenizer, token_ids, skip=skip)) == tokenizer.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.parametrize("make", [byte_level, metaspace])
@given(prompt=st.text("The fox", min_size=1, max_size=10), text=TEXTS)
def test_output_continues_the_prompt(make, prompt: str, text: str) -> None:
    """The first output token keeps the space in front of it, which decoding it alone would lose."""
    tokenizer = make()
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=True)
    token_ids = tokenizer.encode(prompt + text, add_special_tokens=True)
    if token_ids[: len(prompt_ids)] != prompt_ids:
        return  # the tokenizer merges across the border
    whole = tokenizer.decode(token_ids, skip_special_tokens=True)
    before = tokenizer.decode(prompt_ids, skip_special_tokens=True)
    assert before + "".join(stream(tokenizer, token_ids[len(prompt_ids) :], prompt_ids)) == whole


def test_a_prompt_that_ends_inside_a_character_does_not_come_out_again() -> None:
    tokenizer = byte_level()
    smile = tokenizer.encode("😀", add_special_tokens=False)
    assert len(smile) > 1
    hello = tokenizer.encode("Hello", add_special_tokens=False)
    assert "Hello" not in "".join(stream(tokenizer, smile[-1:], [*hello, *smile[:-1]]))


def test_special_tokens_are_text_only_on_request() -> None:
    tokenizer = byte_level()
    token_ids = [*tokenizer.encode("The", add_special_tokens=False), IM_END_ID]
    assert "".join(stream(tokenizer, token_ids)) == "The"
    assert "".join(stream(tokenizer, token_ids, skip=False)) == "The<|im_end|>"


def test_broken_bytes_do_not_pile_up() -> None:
    """An endless run of bytes that are no character is passed on in stretches: memory and time per token stay bounded."""
    tokenizer = byte_level()
    lone_byte = tokenizer.encode("😀", add_special_tokens=False)[-1]
    pieces = stream(tokenizer, [lone_byte] * 1000)
    assert max(map(len, pieces)) <= 64
    assert "".join(pieces) == tokenizer.decode([lone_byte] * 1000, skip_special_tokens=True)


def test_a_long_run_of_skipped_tokens_costs_nothing() -> None:
    tokenizer = byte_level()
    assert "".join(stream(tokenizer, [IM_START_ID] * 20_000)) == ""


@pytest.mark.parametrize("make", [byte_level, metaspace])
@given(text=TEXTS)
def test_bytes_of_single_tokens_add_up_to_the_text(make, text: str) -> None:
    tokenizer = make()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    data = b"".join(tokenizer.token_texts.get(token_id).data for token_id in token_ids)
    assert data.decode().removeprefix(" " if make is metaspace else "") == text.removeprefix(" " if make is metaspace else "")


def test_a_token_that_is_half_a_character_has_its_bytes() -> None:
    tokenizer = byte_level()
    first, *_ = tokenizer.encode("😀", add_special_tokens=False)
    text, data = tokenizer.token_texts.get(first)
    assert data == "😀".encode()[: len(data)]
    assert text == "\ufffd"
