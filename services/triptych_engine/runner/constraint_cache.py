"""The engine's compiled constraints."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoTokenizer
from triptych.errors import UnimplementedError
from triptych_common.constraints.cache import ConstraintCache
from triptych_common.constraints.tokenizer import constraint_tokenizer
from triptych_common.model.store import eos_token_ids

if TYPE_CHECKING:
    from llguidance import LLTokenizer

#: Constraints that are compiled at once. Compiling takes cores from the model, so they are few.
_NUM_THREADS = 2


def constraint_cache(model_path: Path, vocab_size: int) -> ConstraintCache:
    """A cache that compiles for a model. It loads the model's tokenizer at the first use.

    Args:
        vocab_size: number of the model's logits.
    """

    def load_tokenizer() -> LLTokenizer:
        try:
            backend = AutoTokenizer.from_pretrained(str(model_path), local_files_only=True).backend_tokenizer
        except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
            raise UnimplementedError("constraints need the model's fast tokenizer, which it lacks", field="constraint") from error
        return constraint_tokenizer(backend, vocab_size, eos_token_ids(model_path))

    return ConstraintCache(load_tokenizer, ThreadPoolExecutor(_NUM_THREADS, "constraints"), "constraint")
