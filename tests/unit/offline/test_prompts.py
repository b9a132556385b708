"""What is read as a prompt, as prompts, and as a conversation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych import BeamSearchParams, SamplingParams
from triptych.errors import InvalidRequestError
from triptych.offline.prompts import each_conversation, each_prompt, media_items, read_prompt, with_params
from triptych.v1 import common_pb2

token_ids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5)
single = st.one_of(
    st.text(), token_ids, st.fixed_dictionaries({"prompt": st.text()}), st.fixed_dictionaries({"prompt_token_ids": token_ids})
)


@given(single)
def test_one_prompt_is_the_only_one(prompt: Any) -> None:
    assert [*each_prompt(prompt)] == [prompt]


@given(st.lists(single, max_size=4))
def test_prompts_are_taken_as_they_are(prompts: list[Any]) -> None:
    assert [*each_prompt(prompts)] == prompts
    assert [*each_prompt(iter(prompts))] == prompts


@given(single)
def test_a_prompt_is_text_or_token_ids(prompt: Any) -> None:
    request, text = read_prompt(prompt)
    inner = prompt if not isinstance(prompt, dict) else next(iter(prompt.values()))
    if isinstance(inner, str):
        assert request.text == text == inner
        assert request.HasField("text")
    else:
        assert [*request.token_ids.ids] == inner
        assert text is None


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({}, "either 'prompt' or"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "either 'prompt' or"),
        ({"promt": "a"}, "no 'promt'; known are cache_salt, multi_modal_data"),
        ([-1], "not negative"),
        ([2**32], "not negative"),
        (["a"], "not list"),
        (3, "not int"),
        ({"prompt": "a", "multi_modal_data": {"picture": b""}}, "no 'picture'; known are image, audio, video"),
        ([], "not list"),
        ({"prompt": "a", "multi_modal_data": [b""]}, "multi_modal_data is a dictionary, not list"),
        ({"prompt": "a", "multi_modal_data": {"audio": ([0.5], -1)}}, "sampling rate of audio .* given: -1"),
        ({"prompt": "a", "multi_modal_data": {"image": 3}}, r"multi_modal_data.image\[0\]: int is not a source"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_prompt(prompt)


def test_prompts_that_are_none() -> None:
    with pytest.raises(InvalidRequestError, match="not int"):
        each_prompt(5)  # type: ignore[arg-type]


def test_numpy_integers_are_token_ids() -> None:
    assert [*read_prompt([*np.arange(3)])[0].token_ids.ids] == [0, 1, 2]


def test_a_salt_is_the_prompts_own() -> None:
    assert read_prompt({"prompt": "a", "cache_salt": "s"})[0].options.cache_salt == "s"


def test_params_of_each_prompt_and_of_all() -> None:
    default, one, two = SamplingParams(), SamplingParams(n=1), SamplingParams(n=2)
    assert [*with_params(["a", "b"], None, default)] == [("a", default), ("b", default)]
    assert [*with_params(["a", "b"], one, default)] == [("a", one), ("b", one)]
    assert [*with_params(["a", "b"], [one, two], default)] == [("a", one), ("b", two)]
    assert [*with_params(iter(["a", "b"]), (one, two), default)] == [("a", one), ("b", two)]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": 0}, "must be SamplingParams or a sequence of them, not dict"),
        (iter([SamplingParams()]), "not list_iterator"),
        ([SamplingParams(), None], r"sampling_params\[1\] must be SamplingParams, not NoneType"),
        (BeamSearchParams(beam_width=2, max_tokens=3), "not BeamSearchParams"),
        ("greedy", "not str"),
    ],
)
def test_what_are_no_params(params: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        with_params(["a", "b"], params, SamplingParams())


def test_a_beam_search_has_params_of_its_own() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    assert [*with_params(["a"], params, params)] == [("a", params)]
    with pytest.raises(TypeError, match="not SamplingParams"):
        with_params(["a"], SamplingParams(), params)


def test_conversations() -> None:
    turns = [{"role": "user", "content": "hi"}]
    assert each_conversation(turns) == [turns]
    assert each_conversation("hi") == ["hi"]
    assert each_conversation([turns, turns]) == [turns, turns]
    assert each_conversation(["hi", turns]) == ["hi", turns]
    assert [*each_conversation(iter([turns]))] == [turns]
    assert each_conversation([]) == []


def test_media_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"png")
    items = [*media_items({"video": b"v", "image": [file, b"i"]})]
    assert [(item.modality, item.data) for item in items] == [
        (common_pb2.MODALITY_IMAGE, b"png"),
        (common_pb2.MODALITY_IMAGE, b"i"),
        (common_pb2.MODALITY_VIDEO, b"v"),
    ]
    with pytest.raises(FileNotFoundError):
        [*media_items({"image": tmp_path / "none.png"})]


@pytest.mark.parametrize("shape", [(100,), (100, 2)])
def test_sound_as_an_array_loses_nothing(shape: tuple[int, ...]) -> None:
    import soundfile

    samples = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (item,) = media_items({"audio": (samples, 16_000)})
    read, rate = soundfile.read(io.BytesIO(item.data), dtype="float32")
    assert rate == 16_000
    np.testing.assert_array_equal(read, samples)


def test_sound_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"shape \[samples\]"):
        [*media_items({"audio": (np.zeros((1, 2, 3)), 16_000)})]
