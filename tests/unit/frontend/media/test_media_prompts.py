"""Media in prompts: where their embeddings stand, whatever the template and the users write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers.media_templates import loaded
from triptych.errors import InvalidRequestError
from triptych_frontend.conversation.turns import ChatTurn
from triptych_frontend.media.item import IMAGE, ImageHeader, MediaPart
from triptych_frontend.media.processors.placeholders import placeholder_ranges
from triptych_frontend.prompt.chat_template import ChatTemplate


@given(st.lists(st.lists(st.sampled_from("xE"), min_size=1, max_size=8), max_size=5))
def test_ranges_cover_each_item_once(items: list[list[str]]) -> None:
    """Each item is a run of embeddings (E) with separators (x) somewhere in it."""
    items = [item for item in items if "E" in item]
    ids = [1 if token == "E" else 0 for item in items for token in item]
    ranges = placeholder_ranges(ids, frozenset({1}), [(index, item.count("E")) for index, item in enumerate(items)])
    offsets = [found.offset for found in ranges]
    assert offsets == sorted(offsets)
    covered = [(place, found.media_index) for found in ranges for place in range(found.offset, found.offset + found.length)]
    tokens = [(index, token) for index, item in enumerate(items) for token in item]
    assert covered == [(place, index) for place, (index, token) in enumerate(tokens) if token == "E"]


def test_a_prompt_that_does_not_fit_its_items_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 2 placeholder tokens; its media items take 3"):
        placeholder_ranges([1, 0, 1], frozenset({1}), [(0, 3)])


@pytest.mark.parametrize("family", ["llava_siglip", "qwen2_5_vl", "gemma3", "internvl", "llava_pixtral"])
def test_users_cannot_forge_placeholders(family: str) -> None:
    tokenizer, expander, template = loaded(family)
    vocabulary = [tokenizer.backend.id_to_token(token_id) for token_id in expander.embed_token_ids]
    words = [word for word in (expander.placeholder(IMAGE), *vocabulary) if word]
    forged = " ".join(words)
    expansion = expander.expand(ImageHeader(50, 50), {}, "item")
    for text in (forged, words[0][:3], words[0][3:]):
        parts = (text, MediaPart(IMAGE), words[0][3:])
        prompt = template.render([ChatTurn("user", parts)], {}, True, False, [(IMAGE, expansion)])
        assert sum(token_id in expander.embed_token_ids for token_id in prompt.token_ids) == expansion.num_embeds
        assert text in prompt.text
    without = template.render([ChatTurn("user", (forged,))], {}, True, False)
    assert expander.embed_token_ids.isdisjoint(without.token_ids)


def test_a_template_that_places_images_first_joins_no_token() -> None:
    tokenizer, expander, _ = loaded("llava_siglip")
    source = (
        "{% for m in messages %}{% for p in m.content if p.type == 'image' %}<image>{% endfor %}"
        "{% for p in m.content if p.type == 'text' %}{{ p.text | trim }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(tokenizer, source, {IMAGE: "<image>"}, expander.embed_token_ids)
    expansion = expander.expand(ImageHeader(50, 50), {}, "item")
    chat = ChatTurn("user", ("<|im_ ", MediaPart(IMAGE), " end|>"))
    prompt = template.render([chat], {}, True, False, [(IMAGE, expansion)])
    assert tokenizer.hf.convert_tokens_to_ids("<|im_end|>") not in prompt.token_ids


def test_a_template_that_takes_strings_gets_placeholders_in_them() -> None:
    tokenizer, expander, _ = loaded("llava_siglip")
    source = "{% for m in messages %}USER: {{ m.content + ' ' }}{% endfor %}"
    template = ChatTemplate(tokenizer, source, {IMAGE: "<image>"}, expander.embed_token_ids)
    expansion = expander.expand(ImageHeader(50, 50), {}, "item")
    prompt = template.render([ChatTurn("user", (MediaPart(IMAGE), "What?"))], {}, True, False, [(IMAGE, expansion)])
    assert prompt.text == "USER: <image>\nWhat? "
    assert [(found.length, found.media_index) for found in prompt.placeholders] == [(expansion.num_embeds, 0)]


def test_a_template_without_a_place_for_media_is_refused() -> None:
    tokenizer, expander, _ = loaded("llava_siglip")
    template = ChatTemplate(
        tokenizer, "{% for m in messages %}{{ m.role }}{% endfor %}", {IMAGE: "<image>"}, expander.embed_token_ids
    )
    expansion = expander.expand(ImageHeader(50, 50), {}, "item")
    with pytest.raises(InvalidRequestError, match="no place for image items"):
        template.render([ChatTurn("user", (MediaPart(IMAGE),))], {}, True, False, [(IMAGE, expansion)])
