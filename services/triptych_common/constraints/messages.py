"""From the contract's `Constraint` to a spec. Checks shape and size; the compilation checks the text."""

from __future__ import annotations

import json

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2

from triptych_common.constraints.spec import KINDS, ConstraintSpec

#: Longest text of a constraint, in bytes of UTF-8. A schema of this size compiles in about a second.
MAX_CONSTRAINT_BYTES = 256 * 1024
#: Most tokens that may start a constraint.
MAX_START_TOKENS = 64


def to_spec(message: common_pb2.Constraint, field: str) -> ConstraintSpec:
    """The spec of a message.

    Args:
        field: path of the message in the request, for errors.

    Raises:
        InvalidRequestError: no kind is set, or its value has no use or is too long.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequestError(f"{field} must have one of {', '.join(KINDS)}", field=field, limit=", ".join(KINDS))
    own = f"{field}.{kind}"
    if kind == "json_object":
        if not message.json_object:
            raise InvalidRequestError(f"{own} must be true", field=own, limit="true", value="false")
        return ConstraintSpec(kind, "")
    if kind == "choice":
        if not message.choice.values:
            raise InvalidRequestError(f"{own} must have at least one string", field=own, limit=1, value=0)
        text = json.dumps(list(message.choice.values), ensure_ascii=False)
    else:
        text = getattr(message, kind)
    size = len(text.encode())
    if size > MAX_CONSTRAINT_BYTES:
        raise InvalidRequestError(
            f"{own} may have at most {MAX_CONSTRAINT_BYTES} bytes; given: {size}", field=own, limit=MAX_CONSTRAINT_BYTES, value=size
        )
    return ConstraintSpec(kind, text)


def to_start_tokens(message: common_pb2.Constraint, field: str, vocab_size: int) -> tuple[int, ...]:
    """The tokens after which the constraint begins; empty if it holds from the start.

    Raises:
        InvalidRequestError: there are too many, or one is not in the vocabulary.
    """
    own, token_ids = f"{field}.starts_after_token_ids", message.starts_after_token_ids
    if len(token_ids) > MAX_START_TOKENS:
        raise InvalidRequestError(
            f"{own} may have at most {MAX_START_TOKENS} token ids; given: {len(token_ids)}",
            field=own,
            limit=MAX_START_TOKENS,
            value=len(token_ids),
        )
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidRequestError(
                f"token ids in {own} must be below the vocabulary's size of {vocab_size}; given: {token_id}",
                field=own,
                limit=vocab_size - 1,
                value=token_id,
            )
    return tuple(token_ids)
