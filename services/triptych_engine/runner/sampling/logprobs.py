"""Log probabilities that clients asked for."""

from __future__ import annotations

import torch

from triptych_engine.runner.transfer import Fetch, fetch
from triptych_engine.scheduling.request import TokenLogprobs


class PendingLogprobs:
    """Log probability, rank and the likeliest alternatives of a token at each position, on their way from the device.

    Args:
        logits: [n, vocab_size], of the model, before penalties and temperature.
        token_ids: [n] int64.
        num_top: alternatives to report.
    """

    def __init__(self, logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> None:
        logprobs = logits.float().log_softmax(-1)
        chosen = logprobs.gather(-1, token_ids[:, None])
        ranks = (logprobs > chosen).sum(-1) + 1
        values, ids = logprobs.topk(min(num_top, logprobs.shape[-1])) if num_top else (logprobs[:, :0], logprobs[:, :0].long())
        self._fetch: Fetch = fetch(token_ids, chosen[:, 0], ranks, ids, values)

    def entries(self) -> list[TokenLogprobs]:
        """One for each position; waits for them."""
        columns = (array.tolist() for array in self._fetch())
        return [
            TokenLogprobs(token_id, logprob, rank, tuple(top_ids), tuple(top))
            for token_id, logprob, rank, top_ids, top in zip(*columns, strict=True)
        ]
