"""Options that need the tokenizer: banned words, and prompts that are cut."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.limits import MAX_BAD_WORDS

from triptych_frontend.errors import check_count, check_range
from triptych_frontend.generation.sampling import MAX_BAD_SEQUENCE_TOKENS
from triptych_frontend.prompt.preprocess import Prompt
from triptych_frontend.tokens.tokenizer import Tokenizer

_WORDS = "options.bad_words"
_TRUNCATE = "options.truncate_prompt_tokens"


def check_bad_words(words: Iterable[str]) -> tuple[str, ...]:
    """The words. Raises InvalidRequestError."""
    words = tuple(words)
    check_count(_WORDS, len(words), MAX_BAD_WORDS, "words")
    for index, word in enumerate(words):
        if not word.strip():
            raise InvalidRequestError(f"{_WORDS}[{index}] must not be empty", field=f"{_WORDS}[{index}]")
    return words


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
                raise InvalidRequestError(
                    f"{_WORDS}[{index}] may have at most {MAX_BAD_SEQUENCE_TOKENS} tokens; it has {len(token_ids)}",
                    field=f"{_WORDS}[{index}]",
                    limit=MAX_BAD_SEQUENCE_TOKENS,
                    value=len(token_ids),
                )
            if len(token_ids) == 1:
                sampling.bad_token_ids.append(token_ids[0])
            elif token_ids:
                sampling.bad_token_sequences.add(token_ids=token_ids)


def kept_tokens(options: generation_pb2.GenerationOptions, prompt: Prompt, max_model_len: int) -> int | None:
    """How many last tokens of the prompt to keep; None for all. Raises InvalidRequestError."""
    if not options.HasField("truncate_prompt_tokens"):
        return None
    if prompt.media:
        raise InvalidRequestError(f"{_TRUNCATE} is not for prompts with media", field=_TRUNCATE)
    limit = options.truncate_prompt_tokens
    if limit == -1:
        sampling = options.sampling
        limit = max(max_model_len - (sampling.max_tokens if sampling.HasField("max_tokens") else 1), 1)
    else:
        check_range(_TRUNCATE, limit, 1, max_model_len)
    return limit if limit < len(prompt.token_ids) else None
