"""Mixtures of experts on GPUs."""

from __future__ import annotations

import torch
import triton
from torch import nn

from triptych_engine.runner.cuda.kernels import experts as kernels
from triptych_engine.runner.fusion.kernels import FusedMoE, MoEParts

#: Tiles of a product: outputs, bytes of a row that are multiplied at once, and stages. They fit into the shared memory of all GPUs.
_COLUMNS, _INNER_BYTES, _NUM_STAGES = 64, 128, 3
#: Least and most pairs of a tile.
_FEWEST_ROWS, _MOST_ROWS = 16, 64


class CudaMoE(FusedMoE):
    """Four launches: the router's product, the choice, gate and up with the activation, down. What is added up is the caller's."""

    def __init__(self, parts: MoEParts) -> None:
        super().__init__()
        self.parts, self.num_experts = parts, len(parts.down)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.reshape(-1, hidden_states.shape[-1]).to(self.parts.router.dtype)
        states, shares = self.outputs(x, self.new_counts(1)[0])
        added = (states.view(*shares.shape, -1).float() * shares[..., None]).sum(1)
        return added.view(hidden_states.shape).to(hidden_states.dtype)

    def new_counts(self, num_layers: int) -> torch.Tensor:
        """[num_layers, num_experts] int32 zeros, for `outputs`."""
        return torch.zeros(num_layers, self.num_experts, dtype=torch.int32, device=self.parts.router.device)

    def outputs(self, x: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of each token's experts, [num_tokens * top_k, hidden], and their shares, [num_tokens, top_k] fp32.

        Args:
            x: [num_tokens, hidden] of the weights' dtype, dense.
            counts: [num_experts] int32 zeros.
        """
        parts, num_tokens = self.parts, len(x)
        logits = nn.functional.linear(x, parts.router, parts.router_bias)
        shares = torch.empty(num_tokens, parts.top_k, dtype=torch.float32, device=x.device)
        pairs = torch.empty(self.num_experts, num_tokens, dtype=torch.int32, device=x.device)
        kernels.route_kernel[num_tokens,](
            logits, shares, counts, pairs, num_tokens, NUM_EXPERTS=self.num_experts,
            BLOCK=triton.next_power_of_2(self.num_experts), TOP_K=parts.top_k, IS_NORMALIZED=parts.is_normalized, num_warps=1,
        )  # fmt: skip
        inner = self._product(x, parts.gate_up, counts, pairs, activation=parts.activation)
        return self._product(inner, parts.down, counts, pairs), shares

    def _product(
        self, x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, pairs: torch.Tensor, activation: str | None = None
    ) -> torch.Tensor:
        """The products of all pairs, [num_tokens * top_k, out]. activation: of gate and up, which the weight has both."""
        num_tokens = pairs.shape[1]
        num_pairs = num_tokens * self.parts.top_k
        size = weight.shape[1] // (1 if activation is None else 2)
        out = torch.empty(num_pairs, size, dtype=x.dtype, device=x.device)
        rows = rows_of_a_tile(num_pairs, self.num_experts)
        num_blocks = min(num_pairs, num_pairs // rows + self.num_experts)  # each expert's last block may not be full
        kernels.experts_kernel[num_blocks, triton.cdiv(size, _COLUMNS)](
            x, weight, out, counts, pairs, num_tokens, NUM_EXPERTS=self.num_experts,
            PADDED_EXPERTS=triton.next_power_of_2(self.num_experts), PAIRS_PER_ROW=num_pairs // len(x), IN=x.shape[1], OUT=size,
            IS_GATED=activation is not None, IS_GELU=activation == "gelu_tanh", **tile_constants(rows, x.dtype),
        )  # fmt: skip
        return out


def rows_of_a_tile(num_pairs: int, num_experts: int) -> int:
    """Twice as many as an expert has on average, so that most experts' weights are read once."""
    rows = triton.next_power_of_2(triton.cdiv(2 * num_pairs, num_experts))
    return max(_FEWEST_ROWS, min(rows, _MOST_ROWS))


def tile_constants(rows: int, dtype: torch.dtype) -> dict[str, int]:
    """Of `experts_kernel`."""
    return {
        "ROWS": rows, "COLUMNS": _COLUMNS, "INNER": _INNER_BYTES // dtype.itemsize, "num_warps": 4, "num_stages": _NUM_STAGES
    }  # fmt: skip
