"""What computes a model in place of its own forward pass."""

from __future__ import annotations

from typing import Protocol

import torch

from triptych_engine.runner.attention.paged import AttentionBackend


class WholeDecoder(Protocol):
    """Computes a model without its own forward pass."""

    def takes(self, backend: AttentionBackend) -> bool:
        """Whether it can compute the next step. If not, the model's own forward pass must."""
        ...

    def hidden(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[n, hidden_size]: the last hidden states.

        Args:
            token_ids: [num_tokens] int64.
            position_ids: in the model's form.
            inputs_embeds: [1, num_tokens, hidden_size] that replace the tokens' own embeddings.
            wanted: [n] int64, tokens; None for all.
        """
        ...

    def logits(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """[n, vocab_size] of the wanted tokens. Arguments as of `hidden`."""
        ...
