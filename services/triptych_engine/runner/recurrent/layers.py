"""The recurrent layers of a model, between transformers' modules, which call `conv`, `delta_rule` and `scan`, and the states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from triptych_engine.runner.recurrent.ops import Recurrence, RecurrentOps, TorchRecurrentOps
from triptych_engine.runner.recurrent.step import RecurrentStep, StateShape


class RecurrentLayers:
    """Owns the states. Without a step, a forward pass computes one sequence from its beginning.

    A layer may have several modules with states. Each is a number, in the order of the model.

    Attributes:
        layer_of: the layer of each module.
        shapes: module -> what it keeps per sequence. They are noted in forward passes without a step.
        num_slots: of the memory for states; 0 while there is none.
    """

    def __init__(self) -> None:
        self.layer_of: list[int] = []
        self.shapes: dict[int, StateShape] = {}
        self.num_slots = 0
        self.ops: RecurrentOps = TorchRecurrentOps()
        self._conv: dict[int, torch.Tensor] = {}
        self._matrix: dict[int, torch.Tensor] = {}
        self._step: RecurrentStep | None = None

    @property
    def layers(self) -> set[int]:
        """The layers that keep something."""
        return {self.layer_of[module] for module in self.shapes}

    @property
    def state_bytes(self) -> int:
        """Size of the states of a sequence."""
        return sum(shape.num_bytes for shape in self.shapes.values())

    def allocate(self, num_slots: int, device: torch.device) -> None:
        """Allocate the memory for so many states. Not zeroed: pages that were never touched take no memory."""
        self.free()
        self.num_slots = num_slots
        self._conv = {
            module: torch.empty(num_slots, shape.conv_width, shape.conv_channels, device=device)
            for module, shape in self.shapes.items()
            if shape.conv_channels
        }
        self._matrix = {
            module: torch.empty(num_slots, shape.num_heads, shape.key_dim, shape.value_dim, device=device)
            for module, shape in self.shapes.items()
            if shape.num_heads
        }

    def free(self) -> None:
        """Free the memory of the states."""
        self.num_slots = 0
        self._conv, self._matrix = {}, {}

    @contextmanager
    def computing(self, step: RecurrentStep) -> Iterator[None]:
        """Within this context, a forward pass computes this step."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def copy(self, source: int, slot: int) -> None:
        """Let the states in a slot be those in another one."""
        if source != slot:
            for states in (*self._conv.values(), *self._matrix.values()):
                states[slot].copy_(states[source])

    # -- what modules call ------------------------------------------------------------------------------------------------------

    def conv(
        self,
        module: int,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """In the place of `causal_conv1d_fn`: hidden_states [1, channels, num_tokens], weight [channels, width + 1]."""
        x = hidden_states[0].T
        if x.stride(1) != 1:
            x = x.contiguous()
        silu = activation in ("silu", "swish")
        out = self.convolve(module, x, weight, bias, silu=silu)
        if activation is not None and not silu:
            out = ACT2FN[activation](out)
        return out.T[None]

    def convolve(
        self, module: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **options: bool
    ) -> torch.Tensor:
        """The convolution of a module. Arguments like those of `RecurrentOps.conv`."""
        step, state = self.conv_state(module, len(x), weight)
        return self.ops.conv(x, weight, bias, state=state, step=step, **options)

    def conv_state(self, module: int, num_tokens: int, weight: torch.Tensor) -> tuple[RecurrentStep, torch.Tensor]:
        """What is computed of a module's convolution, and its states, [num_slots, width, channels] fp32.

        weight: [channels, width + 1].
        """
        if self._step is not None:
            return self._step, self._conv[module]
        channels, width = weight.shape[0], weight.shape[1] - 1
        self._note(module, conv_width=width, conv_channels=channels)
        return RecurrentStep.alone(num_tokens), torch.zeros(1, width, channels, device=weight.device)

    def delta_rule(
        self,
        module: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """In the place of `torch_chunk_gated_delta_rule` and `chunk_kimi_delta_attention`: query, key [1, num_tokens,
        num_key_heads, key_dim], value [1, num_tokens, num_heads, value_dim], g the logarithm of the decay, [1, num_tokens,
        num_heads] or [1, num_tokens, num_heads, key_dim]."""
        inputs = Recurrence(
            query=query[0],
            key=key[0],
            value=value[0],
            decay=g[0].float().exp(),
            beta=beta[0].float(),
            has_delta_rule=True,
            normalizes=use_qk_l2norm_in_kernel,
            scale=key.shape[-1] ** -0.5,
        )
        return self.recur(module, inputs)[None], None

    def scan(
        self,
        module: int,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,  # noqa: N803  # transformers' names
        B: torch.Tensor,  # noqa: N803
        C: torch.Tensor,  # noqa: N803
        D: torch.Tensor | None = None,  # noqa: N803
        dt_bias: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **kwargs: Any,
    ) -> torch.Tensor:
        """In the place of `mamba2_chunk_scan`: hidden_states [1, num_tokens, num_heads, head_dim], dt [1, num_tokens, num_heads],
        B, C [1, num_tokens, num_groups, state_size]."""
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        dt = functional.softplus(dt) if dt_softplus else dt
        dt = dt[0].clamp(*dt_limit).float()
        skip = None if D is None else D.float()
        inputs = Recurrence(query=C[0], key=B[0], value=hidden_states[0], decay=(dt * A.float()).exp(), beta=dt, skip=skip)
        return self.recur(module, inputs)[None]

    def recur(self, module: int, inputs: Recurrence) -> torch.Tensor:
        """The recurrence of a module, like `RecurrentOps.recur`."""
        num_heads, value_dim = inputs.value.shape[1:]
        step, state = self.matrix_state(module, len(inputs.value), num_heads, inputs.key.shape[-1], value_dim, inputs.value.device)
        return self.ops.recur(inputs, state, step)

    def matrix_state(
        self, module: int, num_tokens: int, num_heads: int, key_dim: int, value_dim: int, device: torch.device
    ) -> tuple[RecurrentStep, torch.Tensor]:
        """What is computed of a module's recurrence, and its states, [num_slots, num_heads, key_dim, value_dim] fp32."""
        if self._step is not None:
            return self._step, self._matrix[module]
        self._note(module, num_heads=num_heads, key_dim=key_dim, value_dim=value_dim)
        return RecurrentStep.alone(num_tokens), torch.zeros(1, num_heads, key_dim, value_dim, device=device)

    def _note(self, module: int, **sizes: int) -> None:
        known = self.shapes.get(module, StateShape())
        self.shapes[module] = StateShape(**{name: sizes.get(name, getattr(known, name)) for name in StateShape.__slots__})
