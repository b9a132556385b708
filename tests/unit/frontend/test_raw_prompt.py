"""Raw prompts: expansion and tokenization of text and of token ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.media_files import checkpoint
from support.drivers.media_templates import loaded
from triptych.errors import UnimplementedError
from triptych_frontend.media.item import AUDIO, IMAGE, Expansion, ImageHeader
from triptych_frontend.prompt.raw_prompt import RawPrompts
from triptych_frontend.tokens.tokenizer import Tokenizer


@given(st.lists(st.sampled_from(["<image>", "é", " fox", "\n", "😀", "<|im_end|>", "a"]), max_size=12))
def test_text_and_token_ids_give_the_same_prompt(words: list[str]) -> None:
    tokenizer, expander, _ = loaded("llava_siglip")
    raw = RawPrompts(tokenizer, {IMAGE: "<image>"}, expander.embed_token_ids)
    (image_id,) = tokenizer.encode("<image>", False)
    text, modalities = "".join(words), [IMAGE] * words.count("<image>")
    given_ids = tokenizer.encode(text, False)
    expansion = expander.expand(ImageHeader(50, 50), {}, "item")
    items = [(IMAGE, expansion)] * len(modalities)
    by_text, by_ids = (
        raw.tokenized(prompt, raw.places(prompt, modalities), items, add_special_tokens=False, with_offsets=True)
        for prompt in (text, given_ids)
    )
    assert by_text == by_ids
    assert by_text.text == text
    assert len(by_text.token_ids) == len(given_ids) + len(modalities) * (expansion.num_embeds - 1)
    assert sum(found.length for found in by_text.placeholders) == len(modalities) * expansion.num_embeds
    assert by_text.offsets is not None
    for token_id, offset in zip(by_text.token_ids, by_text.offsets, strict=True):
        if token_id == image_id:
            assert text.startswith("<image>", offset)
        elif "\ufffd" not in (token := tokenizer.decode([token_id], False)):
            assert text.startswith(token, offset)


@pytest.mark.parametrize("around", ["{}", "a{}b", "a\n{}b", "a\n{}\nb", "a\n\n{}\n\n", "\n{}", "{}\n", "{}{}", "a\n{}\n{}\nb"])
def test_line_breaks_of_the_prompt_join_those_of_an_expansion(around: str) -> None:
    """As in Gemma, whose tokenizer has tokens for rows of line breaks, and whose images stand between line breaks."""
    tokenizer = Tokenizer.load(checkpoint("llava_siglip"))
    tokenizer.hf.add_tokens(["\n" * count for count in range(2, 8)])
    (image_id,) = tokenizer.encode("<image>", False)
    raw = RawPrompts(tokenizer, {IMAGE: "<image>"}, frozenset({image_id}))
    text = around.format(*["<image>"] * 2)
    modalities = [IMAGE] * text.count("<image>")
    expansions = [(IMAGE, Expansion("\n\n<image><image>\n\n", 2))] * len(modalities)
    by_text, by_ids = (
        raw.tokenized(prompt, raw.places(prompt, modalities), expansions, add_special_tokens=False, with_offsets=True)
        for prompt in (text, tokenizer.encode(text, False))
    )
    assert by_ids.token_ids == by_text.token_ids == tokenizer.encode(text.replace("<image>", "\n\n<image><image>\n\n"), False)
    assert by_ids.placeholders == by_text.placeholders
    assert by_ids.offsets is not None
    assert len(by_ids.offsets) == len(by_ids.token_ids)


def test_token_ids_are_refused_beside_media_whose_placeholder_is_several_tokens() -> None:
    tokenizer, expander, _ = loaded("llava_siglip")
    raw = RawPrompts(tokenizer, {IMAGE: "<image>", AUDIO: "(sound)"}, expander.embed_token_ids)
    given_ids = tokenizer.encode("<image>(sound)", False)
    assert raw.places(tokenizer.encode("<image>", False), [IMAGE])
    with pytest.raises(UnimplementedError, match=r"placeholder '\(sound\)' is not one token") as caught:
        raw.places(given_ids, [IMAGE, AUDIO])
    assert caught.value.field == "token_ids"
    assert [place.modality for place in raw.places("<image>(sound)", [IMAGE, AUDIO])] == [IMAGE, AUDIO]
