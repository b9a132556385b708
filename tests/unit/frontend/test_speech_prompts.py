"""The first tokens of Whisper's decoder, and what it never writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders.whisper import whisper_tokenizer
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_frontend.prompt.speech import SpeechPrompts, load_speech_prompts
from triptych_frontend.tokens.tokenizer import Tokenizer

HF = whisper_tokenizer()
CONTEXT = 20
START, ENGLISH, GERMAN, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_TIMESTAMPS = HF.convert_tokens_to_ids(
    ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|startofprev|>", "<|notimestamps|>"]
)
Asked = generation_pb2.Transcription


def prompts(path: Path, **generation: object) -> SpeechPrompts:
    (path / "config.json").write_text('{"model_type": "whisper", "suppress_tokens": [1], "begin_suppress_tokens": [220, 7]}')
    (path / "generation_config.json").write_text(json.dumps(generation))
    loaded = load_speech_prompts(path, Tokenizer(whisper_tokenizer()), CONTEXT)
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("language", ["de", "German", " DE ", "deutsch"])
def test_a_language(language: str, tmp_path: Path) -> None:
    speech = prompts(tmp_path)
    if language == "deutsch":
        with pytest.raises(InvalidRequestError, match="'deutsch'; known are en, zh, de") as caught:
            speech.prompt(Asked(languages=[language]))
        assert caught.value.field == "transcription.languages"
    else:
        assert speech.prompt(Asked(languages=[language])) == ([START, GERMAN, TRANSCRIBE, NO_TIMESTAMPS], None)


def test_an_unknown_language_is_asked_for(tmp_path: Path) -> None:
    token_ids, language = prompts(tmp_path).prompt(Asked(translate=True))
    assert language is not None
    assert [token_ids[0], *token_ids[2:]] == [START, TRANSLATE, NO_TIMESTAMPS]
    assert (language.index, language.token_ids) == (1, [START])
    assert language.candidates[GERMAN] == "de"
    assert len(language.candidates) == 99


def test_several_languages_limit_the_question(tmp_path: Path) -> None:
    token_ids, language = prompts(tmp_path).prompt(Asked(languages=["de", "English"], prompt="the cat"))
    assert language is not None
    assert set(language.candidates) == {GERMAN, ENGLISH}
    assert token_ids[language.index - 1] == START


def test_the_end_of_the_text_before(tmp_path: Path) -> None:
    speech = prompts(tmp_path)
    assert speech.prompt(Asked(languages=["en"], prompt=" the cat "))[0][:-4] == [
        PREVIOUS,
        *HF(" the cat", add_special_tokens=False)["input_ids"],
    ]
    long, _ = speech.prompt(Asked(languages=["en"], prompt="a b " * 20))
    assert len(long) == 1 + (CONTEXT // 2 - 1) + 4
    assert speech.prompt(Asked(languages=["en"], prompt="  "))[0][0] == START


def test_special_tokens_in_the_text_before_are_text(tmp_path: Path) -> None:
    token_ids, _ = prompts(tmp_path).prompt(Asked(languages=["en"], prompt="<|de|>"))
    assert GERMAN not in token_ids


def test_marks_of_time(tmp_path: Path) -> None:
    speech = prompts(tmp_path)
    first = HF.convert_tokens_to_ids("<|0.00|>")
    assert speech.prompt(Asked(languages=["de"], timestamps=True)) == ([START, GERMAN, TRANSCRIBE, first], None)
    # They are no special tokens, so they stay in the text.
    assert Tokenizer(HF).decode([83, first, START, first + 60], skip_special_tokens=True).endswith("<|0.00|><|1.20|>")
    tokenizer = Tokenizer(whisper_tokenizer())
    tokenizer.added_tokens.pop(first)
    with pytest.raises(InvalidRequestError, match="are not known"):
        SpeechPrompts(tmp_path, tokenizer, CONTEXT).prompt(Asked(languages=["de"], timestamps=True))


def test_a_model_of_english_only(tmp_path: Path) -> None:
    speech = prompts(tmp_path, is_multilingual=False)
    for languages in ([], ["en"], ["English"]):
        assert speech.prompt(Asked(languages=languages)) == ([START, NO_TIMESTAMPS], None)
    with pytest.raises(InvalidRequestError, match="'de'; known are en"):
        speech.prompt(Asked(languages=["de"]))
    with pytest.raises(InvalidRequestError, match="English only"):
        speech.prompt(Asked(translate=True))


def test_what_is_suppressed(tmp_path: Path) -> None:
    sampling = common_pb2.SamplingParams(bad_token_ids=[3])
    prompts(tmp_path, suppress_tokens=[-1, 5]).restrict(sampling)
    assert (list(sampling.bad_token_ids), list(sampling.first_bad_token_ids)) == ([3, 5], [220, 7])


def test_only_transcriptions_are_taken(tmp_path: Path) -> None:
    speech = prompts(tmp_path)
    assert speech.check(generation_pb2.ChatRequest(transcription=Asked(translate=True))).translate
    for request, field in (
        (generation_pb2.ChatRequest(), "messages"),
        (generation_pb2.CompleteRequest(text="Hi"), "prompt"),
        (generation_pb2.ChatRequest(transcription=Asked(), tools=[generation_pb2.Tool(name="f")]), "tools"),
    ):
        with pytest.raises(InvalidRequestError, match="/v1/audio/transcriptions") as caught:
            speech.check(request)  # type: ignore[arg-type]
        assert caught.value.field == field


def test_other_models_have_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert load_speech_prompts(tmp_path, Tokenizer(whisper_tokenizer()), CONTEXT) is None
