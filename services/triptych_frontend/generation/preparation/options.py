"""Generation options beside the sampling parameters: a checkpoint's defaults, banned words, cut prompts, best_of, beam search."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import InvalidRequestError, StartupError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.limits import MAX_AFFINITY_KEY_CHARS, MAX_BAD_WORDS, MAX_CHOICES, MAX_LOGPROBS

from triptych_frontend.errors import check_count, check_range, refusal
from triptych_frontend.generation.sampling import MAX_BAD_SEQUENCE_TOKENS, check_options
from triptych_frontend.prompt.preprocess import Prompt
from triptych_frontend.tokens.tokenizer import Tokenizer

#: Of vLLM's list. Its max_new_tokens is left out: it limits answers without the client's knowledge.
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WORDS = "options.bad_words"
_TRUNCATE = "options.truncate_prompt_tokens"
#: Each step looks at twice as many continuations, and the engine reports at most so many.
MAX_BEAM_WIDTH = MAX_LOGPROBS // 2
_BEAMS = "options.beam_search"
#: Sampling parameters that change or forbid tokens. The scores of a beam search are those of the model itself.
_NOT_WITH_BEAMS = (
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_token_ids",
    "bad_token_sequences",
    "prompt_logprobs",
)


def sampling_defaults(model: Path) -> common_pb2.SamplingParams:
    """The defaults of a model directory; empty if it has none. Raises StartupError if its file is not valid."""
    path = model / "generation_config.json"
    if not path.is_file():
        return common_pb2.SamplingParams()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        defaults = common_pb2.SamplingParams(**{name: config[name] for name in _DEFAULTS if config.get(name) is not None})
        check_options(generation_pb2.GenerationOptions(sampling=defaults), vocab_size=1)
    except (ValueError, TypeError, AttributeError, InvalidRequestError) as error:
        raise StartupError(f"{path} cannot be used for --generation-config auto: {error}") from error
    return defaults


def check_bad_words(words: Iterable[str]) -> tuple[str, ...]:
    """The words. Raises InvalidRequestError."""
    words = tuple(words)
    check_count(_WORDS, len(words), MAX_BAD_WORDS, "words")
    for index, word in enumerate(words):
        if not word.strip():
            raise refusal(f"{_WORDS}[{index}]", "must not be empty")
    return words


def check_affinity_key(key: str) -> None:
    """Raise InvalidRequestError for a key that is too long."""
    check_count("options.affinity_key", len(key), MAX_AFFINITY_KEY_CHARS, "characters")


def ban_words(words: Iterable[str], tokenizer: Tokenizer, sampling: common_pb2.SamplingParams) -> None:
    """Add the words to the banned tokens and token sequences: at the beginning of a text, inside of it, and behind a space.

    Raises:
        InvalidRequestError: a word has too many tokens.
    """
    for index, word in enumerate(words):
        word = word.lstrip()
        spellings = {
            tuple(tokenizer.encode(word, add_special_tokens=False)),
            tuple(tokenizer.encode_inner(word)),
            tuple(tokenizer.encode_inner(f" {word}")),
        }
        for token_ids in sorted(spellings):
            if len(token_ids) > MAX_BAD_SEQUENCE_TOKENS:
                problem = f"may have at most {MAX_BAD_SEQUENCE_TOKENS} tokens; it has {len(token_ids)}"
                raise refusal(f"{_WORDS}[{index}]", problem, MAX_BAD_SEQUENCE_TOKENS, len(token_ids))
            if len(token_ids) == 1:
                sampling.bad_token_ids.append(token_ids[0])
            elif token_ids:
                sampling.bad_token_sequences.add(token_ids=token_ids)


def kept_tokens(options: generation_pb2.GenerationOptions, prompt: Prompt, max_model_len: int) -> int | None:
    """How many last tokens of the prompt to keep; None for all. Raises InvalidRequestError."""
    if not options.HasField("truncate_prompt_tokens"):
        return None
    if prompt.media:
        raise refusal(_TRUNCATE, "is not for prompts with media")
    limit = options.truncate_prompt_tokens
    if limit == -1:
        sampling = options.sampling
        limit = max(max_model_len - (sampling.max_tokens if sampling.HasField("max_tokens") else 1), 1)
    else:
        check_range(_TRUNCATE, limit, 1, max_model_len)
    return limit if limit < len(prompt.token_ids) else None


@dataclass(frozen=True)
class BeamOptions:
    """Checked options of a beam search."""

    width: int
    #: A text's score is the sum of its log probabilities divided by its number of tokens to this power.
    length_penalty: float


def check_best_of(options: generation_pb2.GenerationOptions, num_choices: int, is_final_only: bool) -> int | None:
    """How many choices to generate; None if all are sent. Raises InvalidRequestError."""
    if not options.HasField("best_of"):
        return None
    if options.HasField("beam_search"):
        raise InvalidRequestError("best_of and beam_search exclude each other", field="options.best_of", value=options.best_of)
    check_range("options.best_of", options.best_of, num_choices, MAX_CHOICES)
    _check_final("options.best_of", is_final_only)
    return options.best_of


def check_beam_search(
    options: generation_pb2.GenerationOptions, num_choices: int, echo: bool, is_final_only: bool
) -> BeamOptions | None:
    """The beam search of a request; None if it has none. Raises InvalidRequestError."""
    if not options.HasField("beam_search"):
        return None
    search, sampling = options.beam_search, options.sampling
    _check_final(_BEAMS, is_final_only)
    width = search.width if search.HasField("width") else num_choices
    check_range(f"{_BEAMS}.width", width, num_choices, MAX_BEAM_WIDTH)
    penalty = search.length_penalty if search.HasField("length_penalty") else 1.0
    check_range(f"{_BEAMS}.length_penalty", penalty, -10, 10)
    used = [f"options.{name}" for name in ("stop", "bad_words", "constraint") if _is_set(options, name)]
    used += [f"options.sampling.{name}" for name in _NOT_WITH_BEAMS if _is_set(sampling, name)]
    if echo and sampling.HasField("logprobs"):
        used.append("options.sampling.logprobs")
    if used:
        raise refusal(used[0], "cannot be used in a beam search")
    if sampling.HasField("max_tokens") and sampling.max_tokens == 0:
        raise InvalidRequestError("a beam search needs at least one token", field="options.sampling.max_tokens", limit=1, value=0)
    return BeamOptions(width, penalty)


def _check_final(field: str, is_final_only: bool) -> None:
    if not is_final_only:
        raise refusal(field, "chooses when all texts have ended, so it cannot be streamed: use OUTPUT_MODE_FINAL or a unary call")


def _is_set(message: common_pb2.SamplingParams | generation_pb2.GenerationOptions, name: str) -> bool:
    return any(field.name == name for field, _ in message.ListFields())
