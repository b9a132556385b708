"""A tiny Whisper behind `triptych serve`: what the audio routes answer is what transformers' own model writes down."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
import torch
from support.builders.whisper import SAMPLING_RATE, a_sound, build_whisper
from support.stack import Stack, running_stack
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
from triptych import Client
from triptych.v1 import generation_pb2

pytestmark = pytest.mark.model
CONTEXT = 64


def _wav(seed: int, seconds: float = 2.0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, a_sound(seed, seconds), SAMPLING_RATE, format="WAV")
    return file.getvalue()


class Whisper:
    """A stack that serves the model, and transformers' own."""

    def __init__(self, stack: Stack, path: Path) -> None:
        self.stack, self._name = stack, path.name
        self.tokenizer = WhisperTokenizer.from_pretrained(path)
        self._extractor = WhisperFeatureExtractor.from_pretrained(path)
        self._model = WhisperForConditionalGeneration.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()

    def post(self, file: bytes, route: str = "transcriptions", **fields: Any) -> httpx.Response:
        files = {"file": ("speech.wav", file)}
        return self.stack.http.post(f"/v1/audio/{route}", data={"model": self._name, **fields}, files=files)

    def text(self, file: bytes, route: str = "transcriptions", **fields: Any) -> str:
        response = self.post(file, route, **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["text"])

    def _features(self, file: bytes) -> torch.Tensor:
        samples, rate = soundfile.read(io.BytesIO(file), dtype="float32")
        return self._extractor(samples, sampling_rate=rate, return_tensors="pt").input_features

    def language(self, file: bytes) -> str:
        return self.tokenizer.decode(self._model.detect_language(self._features(file)))

    def expected(self, file: bytes, *prompt: str, previous: str = "", last: str = "<|notimestamps|>") -> str:
        """What transformers writes behind the tokens of a prompt."""
        before = self.tokenizer.get_prompt_ids(previous).tolist() if previous else []
        ids = [*before, *self.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", *prompt, last])]
        output = self._model.generate(
            self._features(file),
            decoder_input_ids=torch.tensor([ids]),
            max_new_tokens=CONTEXT - len(ids),
            return_timestamps=False,
            return_dict_in_generate=True,
        )
        return self.tokenizer.backend_tokenizer.decode(output.sequences[0, len(ids) :].tolist(), skip_special_tokens=True)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whisper]:
    path = build_whisper(tmp_path_factory.mktemp("models") / "tiny-whisper", max_target_positions=CONTEXT)
    with running_stack(str(path), "--engine.kv-cache-memory", "64M", "--engine.dtype", "float32") as stack:
        yield Whisper(stack, path)


def test_a_transcript(whisper: Whisper) -> None:
    file = _wav(0)
    answer = whisper.post(file, language="en").json()
    assert answer["text"] == whisper.expected(file, "<|en|>", "<|transcribe|>")
    assert answer["usage"]["input_tokens"] == 4
    assert answer["usage"]["input_token_details"] == {"audio_tokens": 0, "text_tokens": 4}
    assert whisper.text(file, language="English") == answer["text"]


def test_the_language_is_detected(whisper: Whisper) -> None:
    languages = set()
    for seed in range(3):
        file = _wav(seed)
        language = whisper.language(file)
        languages.add(language)
        assert whisper.text(file) == whisper.expected(file, language, "<|transcribe|>")
    assert len(languages) > 1


def test_several_languages_limit_what_is_detected(whisper: Whisper) -> None:
    file = _wav(1)
    texts = {code: whisper.expected(file, f"<|{code}|>", "<|transcribe|>") for code in ("de", "fr")}
    response = whisper.post(file, languages=["de", "fr"])
    assert response.json()["text"] in texts.values()


def test_a_translation_with_text_before(whisper: Whisper) -> None:
    file = _wav(2)
    language = whisper.language(file)
    expected = whisper.expected(file, language, "<|translate|>", previous="the cat sat")
    assert whisper.text(file, "translations", prompt="the cat sat") == expected


def test_special_tokens_in_the_prompt_are_text(whisper: Whisper) -> None:
    answer = whisper.post(_wav(0), language="en", prompt="<|endoftext|>").json()
    assert answer["usage"]["input_tokens"] > 4 + 1 + len("<|endoftext|>") // 2


def test_many_at_once(whisper: Whisper) -> None:
    files = [_wav(seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda index: whisper.text(files[index % 4], language="en"), range(12)))
    assert texts == [whisper.text(files[index % 4], language="en") for index in range(12)]
    assert len(set(texts)) == 4


def test_a_stream(whisper: Whisper) -> None:
    file = _wav(0)
    lines = whisper.post(file, language="en", stream="true").text.splitlines()
    assert (text := whisper.text(file, language="en"))
    assert text in httpx.Response(200, content=lines[-2].removeprefix("data: ")).json()["text"]


def test_a_long_file_is_cut(whisper: Whisper) -> None:
    response = whisper.post(_wav(0, 65.0), language="en")
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    num_pieces, rest = divmod(usage["input_tokens"], 4)
    assert (num_pieces, rest) in ((3, 0), (4, 0))


def test_the_process_that_cuts_lives_whatever_grpc_does_meanwhile(whisper: Whisper) -> None:
    """A process that was forked while another thread was within gRPC died at once: one in five here."""
    for seed in range(15):
        response = whisper.post(_wav(seed % 3, 9.0), language="en", response_format="verbose_json")
        assert response.status_code == 200, response.text


def test_an_answer_with_times(whisper: Whisper) -> None:
    response = whisper.post(_wav(1, 9.0), language="en", response_format="verbose_json")
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["language"], answer["duration"]) == ("en", pytest.approx(9.0, abs=0.1))
    times = [time_s for segment in answer["segments"] for time_s in (segment["start"], segment["end"])]
    assert times
    assert times[0] >= 0
    assert "<|" not in answer["text"]


def test_marks_of_time_on_request(whisper: Whisper) -> None:
    file = _wav(1)
    asked = generation_pb2.Transcription(languages=["en"], timestamps=True)
    with Client(f"127.0.0.1:{whisper.stack.ports['frontend'][0]}") as client:
        answer = client.chat("", audio=[file], transcription=asked, temperature=0)
    assert answer.choices[0].text == whisper.expected(file, "<|en|>", "<|transcribe|>", last="<|0.00|>")
    assert answer.usage.prompt_tokens == 4
    assert [report.num_tokens for report in answer.media] == [0]


def test_a_client_that_leaves_gives_its_place_back(whisper: Whisper) -> None:
    for fields in ({}, {"language": "en"}):  # while the language is asked for, and later
        with pytest.raises(httpx.ReadTimeout):
            whisper.stack.http.post(
                "/v1/audio/transcriptions",
                data={"model": "tiny-whisper", **fields},
                files={"file": ("speech.wav", _wav(7, 29.0))},
                timeout=httpx.Timeout(10, read=0.02),
            )
    whisper.stack.wait_until_empty()


@pytest.mark.parametrize(("fields", "reason"), [({"language": "Klingon"}, "'Klingon'"), ({"languages": ["en", "xx"]}, "'xx'")])
def test_bad_requests(whisper: Whisper, fields: dict[str, Any], reason: str) -> None:
    response = whisper.post(_wav(0), **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "language"
    assert reason in response.json()["error"]["message"]


@pytest.mark.parametrize("response_format", ["json", "verbose_json", "srt"])
def test_a_file_that_is_longer_than_what_the_model_hears_is_cut(whisper: Whisper, response_format: str) -> None:
    response = whisper.post(_wav(0, 31.0), language="en", response_format=response_format)
    assert response.status_code == 200, response.text
    if response_format == "verbose_json":
        answer = response.json()
        assert answer["duration"] == pytest.approx(31.0, abs=0.1)
        times = [(one["start"], one["end"]) for one in answer["segments"]]
        assert times == sorted(times)
        assert times
        assert times[-1][1] <= 31.1
    assert "<|" not in response.text, "marks are no text"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("completions", {"prompt": "Hi"}),
        ("responses", {"input": "Hi"}),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
    ],
)
def test_other_routes_say_where_to_send_audio(whisper: Whisper, path: str, body: dict[str, Any]) -> None:
    response = whisper.stack.http.post(f"/v1/{path}", json={"model": "tiny-whisper", **body})
    assert response.status_code == 400
    assert "/v1/audio/transcriptions" in response.json()["error"]["message"]
