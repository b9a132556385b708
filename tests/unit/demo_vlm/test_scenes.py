"""Scenes, questions and the facts that pre-training reads off: they must agree with each other."""

from __future__ import annotations

import io
import random

import pytest
from demo_vlm.dataset.drawing import draw
from demo_vlm.dataset.exam import make_exam, mark
from demo_vlm.dataset.facts import SLOTS, cell_labels, fact_values
from demo_vlm.dataset.questions import Question, is_right, questions
from demo_vlm.dataset.scenes import DIGITS, MAX_COUNT, POSITIONS, SHAPES, Item, Scene, sample_crowd, sample_scene
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

scenes = st.integers(0, 10_000).map(lambda seed: sample_scene(random.Random(seed)))


def facts_of(scene: Scene) -> dict[tuple[str, str], str]:
    return {(slot.subject, slot.attribute): slot.values[value] for slot, value in zip(SLOTS, fact_values(scene), strict=True)}


@given(scenes)
def test_a_scene_is_within_its_limits(scene: Scene) -> None:
    assert 1 <= len(scene.items) <= MAX_COUNT
    assert not any(scene.dark and item.colour == "black" for item in scene.items)


@given(st.integers(0, 10_000).map(lambda seed: sample_crowd(random.Random(seed))))
def test_each_item_has_a_cell_to_itself(crowd: Scene) -> None:
    assert len({item.position for item in crowd.items}) == len(crowd.items)
    for item in crowd.items:
        for place in (item.x, item.y):
            assert int(3 * (place - item.size / 2)) == int(3 * (place + item.size / 2))


@given(scenes, st.randoms(use_true_random=False))
def test_every_answer_is_a_fact(scene: Scene, rng: random.Random) -> None:
    facts = facts_of(scene)
    for question in questions(scene, rng):
        answer = question.answer.lower()
        subject = next((kind for kind in SHAPES if f" {kind}" in question.text), None)
        if question.topic in ("colour", "where", "count") and subject:
            assert facts[subject, {"where": "position"}.get(question.topic, question.topic)] == answer
        elif question.topic == "count":
            assert facts["shapes", "count"] == answer
        elif question.topic == "digit":
            assert facts["digit", "digit"] == answer
        elif question.topic == "exists":
            assert answer == ("yes" if scene.of_kind(subject or "") else "no")


@given(scenes)
def test_cells_show_every_item(scene: Scene) -> None:
    kinds, colours = cell_labels(scene)
    shown = {POSITIONS[cell]: (SHAPES + DIGITS)[kind - 1] for cell, kind in enumerate(kinds) if kind}
    assert shown == {item.position: item.kind for item in scene.items}
    assert [bool(kind) for kind in kinds] == [bool(colour) for colour in colours]


def test_positions_are_the_cells_of_a_grid() -> None:
    assert Item("circle", "red", 0.2, 0.5, 0.2).position == "left"
    assert Item("circle", "red", 0.8, 0.8, 0.2).position == "bottom right"
    assert Item("circle", "red", 0.5, 0.5, 0.2).position == "center"


def test_what_is_drawn_is_where_it_should_be() -> None:
    for kind in SHAPES:
        scene = Scene((Item(kind, "blue", 0.2, 0.8, 0.25),), dark=False)
        picture = draw(scene, random.Random(1), (200,))
        red, _, blue = picture.getpixel((round(0.2 * picture.width), round(0.8 * picture.height)))
        assert blue - red > 100, kind
        red, _, blue = picture.getpixel((round(0.8 * picture.width), round(0.2 * picture.height)))
        assert abs(blue - red) < 40, kind


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Top left", True), ("top left.", True), (" TOP  LEFT!", True), ("left", False), ("Top left corner", False)],
)
def test_case_and_punctuation_do_not_matter_but_words_do(answer: str, right: bool) -> None:
    assert is_right(Question("where", "Where is the star?", "Top left"), answer) is right


def test_an_exam_is_the_same_every_time_and_another_for_another_seed() -> None:
    first, again, other = make_exam(5), make_exam(5), make_exam(5, "other")
    assert first == again
    assert {item.image for item in first}.isdisjoint(item.image for item in other)
    for item in first:
        assert Image.MIME[Image.open(io.BytesIO(item.image)).format or ""] == item.media_type


def test_marks_are_counted_by_topic() -> None:
    items = make_exam(20)
    answers = [item.question.answer.upper() for item in items]
    assert mark(items, answers).accuracy == 1
    result = mark(items, ["nonsense", *answers[1:]])
    assert result.accuracy == 0.95
    assert result.right[items[0].question.topic] == result.asked[items[0].question.topic] - 1
    assert "nonsense" in result.lines()[0]
