"""Options that generate more than is sent: best_of and beam search."""

from __future__ import annotations

from dataclasses import dataclass

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.limits import MAX_CHOICES, MAX_LOGPROBS

from triptych_frontend.errors import check_range

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
        raise InvalidRequestError(f"{used[0]} cannot be used in a beam search", field=used[0])
    if sampling.HasField("max_tokens") and sampling.max_tokens == 0:
        raise InvalidRequestError("a beam search needs at least one token", field="options.sampling.max_tokens", limit=1, value=0)
    return BeamOptions(width, penalty)


def _check_final(field: str, is_final_only: bool) -> None:
    if not is_final_only:
        raise InvalidRequestError(
            f"{field} chooses when all texts have ended, so it cannot be streamed: use OUTPUT_MODE_FINAL or a unary call",
            field=field,
        )


def _is_set(message: common_pb2.SamplingParams | generation_pb2.GenerationOptions, name: str) -> bool:
    return any(field.name == name for field, _ in message.ListFields())
