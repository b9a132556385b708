"""Compiled constraints: each is compiled once, in a thread pool, and kept while it is used or among the last ones that were."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from triptych.errors import UnimplementedError

from triptych_common.constraints.compiler import compile_constraint
from triptych_common.constraints.spec import ConstraintSpec

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

log = logging.getLogger(__name__)
#: Compiled constraints that are kept although nothing uses them.
_MAX_UNUSED = 128
_ANY = ConstraintSpec("json_object", "")


class ConstraintCache:
    """Thread-safe. Failures are not kept.

    Args:
        load_tokenizer: makes the tokenizer, at the first use, in a thread of the pool. Its ValueError says why it cannot be used.
        pool: where constraints are compiled.
        field: path of the constraint in a request, for errors.
    """

    def __init__(self, load_tokenizer: Callable[[], LLTokenizer], pool: Executor, field: str) -> None:
        self._load_tokenizer, self._pool, self._field = load_tokenizer, pool, field
        self._tokenizer: LLTokenizer | None = None
        self._why_unusable: UnimplementedError | None = None
        self._tokenizer_lock = threading.Lock()
        self._lock = threading.Lock()
        self._recent: OrderedDict[ConstraintSpec, Future[LLMatcher]] = OrderedDict()
        #: Those that somebody holds, recent or not.
        self._held: WeakValueDictionary[ConstraintSpec, Future[LLMatcher]] = WeakValueDictionary()

    @property
    def num_tokens(self) -> int:
        """Tokens of a mask; at least the model's vocabulary."""
        return self._loaded_tokenizer().vocab_size

    @property
    def end_token_ids(self) -> Sequence[int]:
        """Tokens that end a sequence."""
        return self._loaded_tokenizer().eos_tokens

    def compile(self, spec: ConstraintSpec) -> Future[LLMatcher]:
        """The matcher in its first state, which nobody may change. Equal constraints share one compilation. It stays in the cache
        at least as long as the caller holds the future. Its error is an InvalidRequestError, or an UnimplementedError if the
        tokenizer cannot be used. Never cancel it: others may wait."""
        with self._lock:
            found = self._held.get(spec)
            is_new = found is None or (found.done() and found.exception() is not None)
            future = Future() if found is None or is_new else found
            if is_new:
                self._pool.submit(self._compile, spec, future)
            self._held[spec] = self._recent[spec] = future
            self._recent.move_to_end(spec)
            if len(self._recent) > _MAX_UNUSED:
                self._recent.popitem(last=False)
        return future

    def copy(self, spec: ConstraintSpec) -> LLMatcher:
        """A matcher for one sequence. Compiles the constraint here if it is not in the cache. Raises what `compile` says."""
        with self._lock:
            future = self._held.get(spec)
        if future is not None and future.done():
            return future.result().deep_copy()
        return compile_constraint(spec, self._loaded_tokenizer(), self._field)

    def _compile(self, spec: ConstraintSpec, future: Future[LLMatcher]) -> None:
        try:
            future.set_result(compile_constraint(spec, self._loaded_tokenizer(), self._field))
        except BaseException as error:
            with self._lock:
                if self._recent.get(spec) is future:
                    del self._recent[spec]
            future.set_exception(error)

    def _loaded_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._why_unusable is not None:
                raise self._why_unusable
            if self._tokenizer is None:
                try:
                    self._tokenizer = self._load_tokenizer()
                except ValueError as error:
                    reason = f"constraints cannot be used with this model's tokenizer: {error}"
                    self._why_unusable = UnimplementedError(reason, field=self._field)
                    raise self._why_unusable from error
            return self._tokenizer


def warm_up(compile_constraint: Callable[[ConstraintSpec], Future[LLMatcher]]) -> Future[None]:
    """Load the tokenizer of a cache in its pool, by its `compile`, so that the first constraint of a request does not wait for it.

    Returns at once; the future ends when it is loaded. If the tokenizer cannot be used, this is logged, and requests with
    constraints get the error.
    """
    ended: Future[None] = Future()

    def end(compiled: Future[LLMatcher]) -> None:
        if (error := compiled.exception()) is not None:
            log.warning("constraints cannot be used: %s", error)
        if ended.set_running_or_notify_cancel():
            ended.set_result(None)

    compile_constraint(_ANY).add_done_callback(end)
    return ended
