"""What a step has to read and to compute at least, and what that takes at the rates that a device was seen to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSize:
    """Of a Llama-like model."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    bytes_per_value: int

    @property
    def layer_weights(self) -> int:
        """Values in the matrices of all layers."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_q_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Values in the output head."""
        return self.vocab_size * self.hidden_size

    @property
    def kv_bytes_per_token(self) -> int:
        """What the cache keeps of a token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_value

    def decode_bytes(self, batch_size: int, context: float) -> float:
        """What a decode step reads: all matrices once, and the keys and values of each sequence. Activations are left out."""
        return (self.layer_weights + self.head_weights) * self.bytes_per_value + batch_size * context * self.kv_bytes_per_token

    def prefill_flops(self, prompt_len: int) -> float:
        """What a prompt takes, a multiplication and an addition being two; the head computes its last token alone."""
        scores = 2 * 2 * self.num_layers * self.num_q_heads * self.head_dim * prompt_len * (prompt_len + 1) / 2
        return 2 * self.layer_weights * prompt_len + scores + 2 * self.head_weights


@dataclass(frozen=True)
class Ceilings:
    """What the device was seen to reach."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Decode:
    """While all sequences of a batch decode."""

    batch_size: int
    tokens_per_s: float
    mean_context: float

    @property
    def step_s(self) -> float:
        return self.batch_size / self.tokens_per_s

    def bandwidth_share(self, size: ModelSize, ceilings: Ceilings) -> float:
        """Bytes that had to be read per second, as a part of what the device copies."""
        return size.decode_bytes(self.batch_size, self.mean_context) / self.step_s / ceilings.bytes_per_s


def measure_decode(token_times: Sequence[Sequence[float]], prompt_len: int) -> Decode:
    """The rate from the moment at which every sequence has its first token to that at which the first one ends.

    Args:
        token_times: of each sequence, when each of its tokens came, in seconds.

    Raises:
        ValueError: there is no such time.
    """
    start, end = max(times[0] for times in token_times), min(times[-1] for times in token_times)
    counts = [sum(start < moment <= end for moment in times) for times in token_times]
    if not sum(counts) or start >= end:
        raise ValueError("the sequences did not decode at the same time; generate more tokens")
    # The context of a token's step: the prompt, and the output before it.
    contexts = [prompt_len + index for times in token_times for index, moment in enumerate(times) if start < moment <= end]
    return Decode(len(token_times), sum(counts) / (end - start), sum(contexts) / len(contexts))
