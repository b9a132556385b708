"""Refuses constraints that the engine could not compile, before an engine sees the request."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from triptych.v1 import common_pb2
from triptych_common.constraints.cache import ConstraintCache, warm_up
from triptych_common.constraints.messages import to_spec, to_start_tokens
from triptych_common.constraints.tokenizer import constraint_tokenizer

from triptych_frontend.tokens.tokenizer import Tokenizer

_FIELD = "options.constraint"


class ConstraintChecker:
    """Compiles constraints as the engine does, and remembers the last ones.

    Args:
        pool: where they are compiled.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, pool: Executor) -> None:
        self._vocab_size = vocab_size
        # Any end-of-sequence token will do: whether a constraint compiles does not depend on it.
        self._cache = ConstraintCache(lambda: constraint_tokenizer(tokenizer.backend, vocab_size, (0,)), pool, _FIELD)

    def warm_up(self) -> None:
        """Make the first check as fast as the others. Returns at once."""
        warm_up(self._cache.compile)

    async def check(self, constraint: common_pb2.Constraint) -> None:
        """Raise InvalidRequestError, which names the place in the schema or grammar, unless the constraint can be honoured."""
        to_start_tokens(constraint, _FIELD, self._vocab_size)
        await asyncio.shield(asyncio.wrap_future(self._cache.compile(to_spec(constraint, _FIELD))))
