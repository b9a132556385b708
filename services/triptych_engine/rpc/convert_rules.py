"""Converts constraints and bad token sequences to the engine's own types, and checks them."""

from __future__ import annotations

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.constraints.messages import to_spec, to_start_tokens

from triptych_engine.scheduling.request import Constraint

MAX_BAD_SEQUENCES = 1024
#: Longest bad token sequence.
MAX_BAD_SEQUENCE_TOKENS = 64


def to_constraint(message: engine_pb2.EngineRequest, vocab_size: int) -> Constraint | None:
    """The constraint of a request, if it has one. Whether its text compiles is not checked. Raises InvalidRequestError."""
    if not message.HasField("constraint"):
        return None
    starts_after, start = to_start_tokens(message.constraint, "constraint", vocab_size), message.constraint_start
    if start > message.num_output_tokens:
        told = f"constraint_start may be at most num_output_tokens ({message.num_output_tokens}); given: {start}"
        raise InvalidRequestError(told, field="constraint_start", limit=message.num_output_tokens, value=start)
    spec = to_spec(message.constraint, "constraint")
    return Constraint(spec, start=start) if message.HasField("constraint_start") else Constraint(spec, starts_after)


def to_bad_sequences(message: common_pb2.SamplingParams, vocab_size: int) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Tokens that are bad by themselves, and sequences of at least two. Raises InvalidRequestError."""
    name, sequences = "sampling.bad_token_sequences", [tuple(sequence.token_ids) for sequence in message.bad_token_sequences]
    if len(sequences) > MAX_BAD_SEQUENCES:
        raise InvalidRequestError(
            f"{name} may have at most {MAX_BAD_SEQUENCES} sequences; given: {len(sequences)}",
            field=name,
            limit=MAX_BAD_SEQUENCES,
            value=len(sequences),
        )
    for index, token_ids in enumerate(sequences):
        field = f"{name}[{index}]"
        if not 1 <= len(token_ids) <= MAX_BAD_SEQUENCE_TOKENS:
            raise InvalidRequestError(
                f"{field} must have 1 to {MAX_BAD_SEQUENCE_TOKENS} token ids; given: {len(token_ids)}",
                field=field,
                limit=MAX_BAD_SEQUENCE_TOKENS,
                value=len(token_ids),
            )
        if max(token_ids) >= vocab_size:
            raise InvalidRequestError(
                f"{field} has the token id {max(token_ids)}; the vocabulary has {vocab_size} tokens",
                field=field,
                limit=vocab_size - 1,
                value=max(token_ids),
            )
    single = [token_ids[0] for token_ids in sequences if len(token_ids) == 1]
    return single, tuple(token_ids for token_ids in sequences if len(token_ids) > 1)
