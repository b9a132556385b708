"""The tokenizer in the form that llguidance takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def constraint_tokenizer(backend: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's tokenizer. It takes up to a second.

    Args:
        backend: a `tokenizers.Tokenizer`; not changed.
        vocab_size: number of the model's logits. Vocabularies are often padded, so it may exceed the tokenizer's.
        eos_token_ids: tokens that end a sequence where the constraint allows an end. Those without a logit are left out.

    Raises:
        ValueError: llguidance cannot use the tokenizer.
    """
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

    copied = Tokenizer.from_str(backend.to_str())
    copied.no_padding()
    copied.no_truncation()
    num_tokens = max(vocab_size, copied.get_vocab_size(with_added_tokens=True))
    ends = [token_id for token_id in eos_token_ids if token_id < vocab_size]
    return LLTokenizer(copied.to_str(), n_vocab=num_tokens, eos_token=ends or None)
