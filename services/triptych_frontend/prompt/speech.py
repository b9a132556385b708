"""Prompts for models that write down speech (Whisper): which tokens its decoder begins with, and which it never writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.model.store import is_encoder_decoder, read_json

from triptych_frontend.errors import refusal
from triptych_frontend.tokens.tokenizer import Tokenizer

_FIELD = "transcription"
_FIRST_MARK = "<|0.00|>"


@dataclass(frozen=True)
class UnknownLanguage:
    """A token of a prompt that says the language of the audio, which is not known yet."""

    #: Of the token among those of the prompt.
    index: int
    #: Token id -> code, of the languages that it may be.
    candidates: Mapping[int, str]
    #: The prompt with which the model says which one it is.
    token_ids: Sequence[int]


class SpeechPrompts:
    """Makes the prompts of one model.

    Args:
        path: directory of the checkpoint.
        tokenizer: of the same.
        max_model_len: the decoder's context, in tokens.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, max_model_len: int) -> None:
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE  # late import: see no_torch

        self._tokenizer, self._max_previous = tokenizer, max(0, max_model_len // 2 - 1)
        config = {**read_json(path / "config.json"), **read_json(path / "generation_config.json")}
        self._ids = {token.content: token_id for token_id, token in tokenizer.added_tokens.items()}
        #: Code -> token id. None for a model of English only.
        codes = dict.fromkeys(TO_LANGUAGE_CODE.values())
        is_multilingual = config.get("is_multilingual", "<|de|>" in self._ids and "<|transcribe|>" in self._ids)
        self.languages = {code: self._ids[f"<|{code}|>"] for code in codes if f"<|{code}|>" in self._ids} if is_multilingual else {}
        self._codes = {**{code: code for code in codes}, **TO_LANGUAGE_CODE}
        self._suppressed = _token_ids(config, "suppress_tokens")
        self._suppressed_first = _token_ids(config, "begin_suppress_tokens")

    def check(self, request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest) -> generation_pb2.Transcription:
        """What a request asks for. Raises InvalidRequestError for anything but a transcription of one audio item."""
        why = "this model only writes down speech: send audio to /v1/audio/transcriptions or /v1/audio/translations"
        if isinstance(request, generation_pb2.CompleteRequest):
            raise InvalidRequestError(f"{why}; it takes no completions", field="prompt")
        if not request.HasField("transcription"):
            raise InvalidRequestError(f"{why}; it takes no chats", field="messages")
        if request.tools:
            raise InvalidRequestError(f"{why}; it calls no tools", field="tools")
        return request.transcription

    def prompt(self, asked: generation_pb2.Transcription) -> tuple[list[int], UnknownLanguage | None]:
        """The decoder's first tokens, and the language among them if it is not known.

        Raises:
            InvalidRequestError: the model does not know a language, does not translate, or has no marks of time.
        """
        previous = self._previous(asked.prompt) if asked.prompt.strip() else []
        if asked.timestamps and _FIRST_MARK not in self._ids:
            raise refusal(f"{_FIELD}.timestamps", "are not known to this model's tokenizer", value="true")
        # With a mark at its beginning, the model goes on with marks.
        start, end = [self._id("<|startoftranscript|>")], [self._id(_FIRST_MARK if asked.timestamps else "<|notimestamps|>")]
        candidates = {self._language(code): code for code in asked.languages}
        if not self.languages:
            if asked.translate:
                raise refusal(f"{_FIELD}.translate", "is not possible: this model writes down English only", value="true")
            return [*previous, *start, *end], None
        task = [self._id("<|translate|>" if asked.translate else "<|transcribe|>")]
        candidates = candidates or {token_id: code for code, token_id in self.languages.items()}
        token_ids = [*previous, *start, next(iter(candidates)), *task, *end]
        if len(candidates) == 1:
            return token_ids, None
        return token_ids, UnknownLanguage(len(previous) + len(start), candidates, start)

    def restrict(self, sampling: common_pb2.SamplingParams) -> None:
        """Let no token be written that generation_config.json suppresses."""
        sampling.bad_token_ids.extend(self._suppressed)
        sampling.first_bad_token_ids.extend(self._suppressed_first)

    def _previous(self, text: str) -> list[int]:
        token_ids = self._tokenizer.encode_user_text(f" {text.strip()}", add_special_tokens=False)
        return [self._id("<|startofprev|>"), *token_ids[max(0, len(token_ids) - self._max_previous) :]]

    def _language(self, name: str) -> int:
        code = self._codes.get(name.strip().lower(), "")
        if not self.languages and code == "en":
            return -1  # all that it knows; there is no token for it
        if code not in self.languages:
            known = ", ".join(self.languages) or "en"
            raise refusal(f"{_FIELD}.languages", f"must be known to this model; given: {name!r}; known are {known}", known, name)
        return self.languages[code]

    def _id(self, token: str) -> int:
        if token not in self._ids:
            raise InvalidRequestError(f"this model's tokenizer lacks {token}", field=_FIELD)
        return self._ids[token]


def load_speech_prompts(path: Path, tokenizer: Tokenizer, max_model_len: int) -> SpeechPrompts | None:
    """The prompts of the model in a directory; None if it is another kind of model."""
    return SpeechPrompts(path, tokenizer, max_model_len) if is_encoder_decoder(path) else None


def _token_ids(config: Mapping[str, Any], name: str) -> list[int]:
    return [token_id for token_id in config.get(name) or () if token_id >= 0]
