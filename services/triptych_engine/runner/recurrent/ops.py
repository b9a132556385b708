"""The two recurrences, over a ragged batch, in plain torch: the reference for the kernels, and what other devices use.

Both read and write the states in their slots, and copy them to the slots of snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from triptych_engine.runner.recurrent.step import RecurrentStep

_NORM_EPS = 1e-6  # as transformers' own l2norm


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Inputs of a matrix-valued recurrence, one state S [key_dim, value_dim] per head. For each token:

        S = decay * S
        S = S + key (x) beta * (value - S^T key)    with the delta rule;  key (x) beta * value without it
        output = S^T query * scale + skip * value

    The delta rule is that of gated DeltaNet (arXiv 2412.06464) and Kimi Delta Attention (arXiv 2510.26692); without it, this is
    Mamba-2 (arXiv 2405.21060), where key, query, beta, value and skip are B, C, dt, x and D.
    """

    query: torch.Tensor  # [num_tokens, num_key_heads, key_dim]
    key: torch.Tensor  # the same; a head serves num_heads / num_key_heads heads in a row
    value: torch.Tensor  # [num_tokens, num_heads, value_dim]
    decay: torch.Tensor  # [num_tokens, num_heads] or, per row of the state, [num_tokens, num_heads, key_dim]; float32
    beta: torch.Tensor  # [num_tokens, num_heads] float32
    skip: torch.Tensor | None = None  # [num_heads] float32
    has_delta_rule: bool = False
    #: Divide queries and keys by their length.
    normalizes: bool = False
    scale: float = 1.0


class RecurrentOps(Protocol):
    """Computes the recurrences of one layer."""

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        silu: bool = False,
        is_gated: bool = False,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        """A causal convolution of each channel over time.

        Args:
            x: [num_tokens, channels], dense rows; with `is_gated` [num_tokens, 3 * channels]: what the input is multiplied by, what
                the result is multiplied by, and the input.
            weight: [channels, width + 1]
            silu: apply it to the result.
            state: [num_slots, width, channels] float32.

        Returns:
            [num_tokens, channels] of the dtype of x.
        """
        ...

    def recur(self, inputs: Recurrence, state: torch.Tensor, step: RecurrentStep) -> torch.Tensor:
        """[num_tokens, num_heads, value_dim] of the values' dtype. state: [num_slots, num_heads, key_dim, value_dim] float32."""
        ...


class TorchRecurrentOps:
    """Segment by segment, token by token."""

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        silu: bool = False,
        is_gated: bool = False,
        state: torch.Tensor,
        step: RecurrentStep,
    ) -> torch.Tensor:
        if is_gated:
            gate, out_gate, x = x.chunk(3, -1)
            return out_gate * self.conv(gate * x, weight, bias, silu=silu, state=state, step=step)
        width = weight.shape[1] - 1
        out = torch.empty_like(x)
        for first, last, slot, is_fresh, snapshot in _segments(step):
            before = torch.zeros_like(state[slot]) if is_fresh else state[slot]
            inputs = torch.cat([before, x[first:last].float()])
            after = inputs[len(inputs) - width :]
            state[slot] = after
            if snapshot >= 0:
                state[snapshot] = after
            result = functional.conv1d(inputs.T[None].to(weight.dtype), weight[:, None], bias, groups=len(weight))[0].T
            out[first:last] = functional.silu(result) if silu else result
        return out

    def recur(self, inputs: Recurrence, state: torch.Tensor, step: RecurrentStep) -> torch.Tensor:
        query, key, value = (x.float() for x in (inputs.query, inputs.key, inputs.value))
        if inputs.normalizes:
            query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS) for x in (query, key))
        group = value.shape[1] // key.shape[1]
        query, key = query.repeat_interleave(group, 1) * inputs.scale, key.repeat_interleave(group, 1)
        decay = inputs.decay if inputs.decay.dim() == 3 else inputs.decay[..., None]
        out = torch.empty_like(value)
        for first, last, slot, is_fresh, snapshot in _segments(step):
            s = torch.zeros_like(state[slot]) if is_fresh else state[slot].clone()
            for t in range(first, last):
                s = s * decay[t, :, :, None]
                new = value[t]
                if inputs.has_delta_rule:
                    new = new - torch.einsum("hkv,hk->hv", s, key[t])
                s = s + key[t, :, :, None] * (inputs.beta[t, :, None] * new)[:, None]
                out[t] = torch.einsum("hkv,hk->hv", s, query[t])
            state[slot] = s
            if snapshot >= 0:
                state[snapshot] = s
        if inputs.skip is not None:
            out = out + inputs.skip[:, None] * value
        return out.to(inputs.value.dtype)


def _segments(step: RecurrentStep) -> list[tuple[int, int, int, bool, int]]:
    """(first token, one past the last, slot, whether the state is zero before, slot of a snapshot or -1) of each."""
    borders = step.first_token.tolist()
    columns = (step.slots.tolist(), step.is_fresh.tolist(), step.snapshots.tolist())
    return [(*pair, *rest) for *pair, rest in zip(borders, borders[1:], zip(*columns, strict=True), strict=False)]
