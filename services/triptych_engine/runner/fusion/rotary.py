"""The cosines and sines of positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.fusion.calls import ModuleCall, is_same_tensor

#: Cosines and sines of a step's positions, [num_tokens, rotary_dim] fp32 each, dense.
CosSin = tuple[torch.Tensor, torch.Tensor]
#: Hidden states, position ids -> cosines and sines, [1, num_tokens, rotary_dim] each.
Rotary = Callable[[torch.Tensor, torch.Tensor], Any]


@dataclass(frozen=True)
class Rotation:
    """The rotary embedding of a layer. Without a module nothing is rotated: there are cosines and sines of no dimensions.

    args: what the module gets besides hidden states and position ids, such as a layer type.
    """

    module: nn.Module | None = None
    args: tuple[str, ...] = ()

    def __call__(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        if self.module is None:
            none = hidden.new_empty(1, position_ids.shape[-1], 0)
            return none, none
        return self.module(hidden, position_ids, *self.args)


def rotation_of(
    layer: ModuleCall, calls: Sequence[ModuleCall], hidden: torch.Tensor, position_ids: torch.Tensor
) -> Rotation | None:
    """What made a layer's cosines and sines, of the embeddings and the position ids; None if it is not known."""
    if layer.position_embeddings is None:
        return Rotation()
    made = [call for call in calls if call.output is layer.position_embeddings]
    if len(made) != 1:
        return None
    given = [*made[0].args, *made[0].kwargs.values()]
    args = tuple(given[2:])
    if (
        len(given) < 2
        or not is_same_tensor(given[0], hidden)
        or not _has_numbers_of(given[1], position_ids)
        or not all(isinstance(arg, str) for arg in args)
    ):
        return None
    return Rotation(made[0].module, args)


def _has_numbers_of(given: Any, position_ids: torch.Tensor) -> bool:
    """Whether a module got the position ids, for which some models make more axes."""
    return isinstance(given, torch.Tensor) and given.shape[-2:] == position_ids.shape[-2:] and bool((given == position_ids).all())


def dense(position_embeddings: Any) -> CosSin:
    """cos and sin, [1, num_tokens, rotary_dim] each, made dense."""
    cos, sin = (part.view(part.shape[-2:]).float().contiguous() for part in position_embeddings)
    return cos, sin


class RotaryTables:
    """Cosines and sines of a step. Most layers get the same ones as the layer before, so they are made dense only once."""

    def __init__(self) -> None:
        self._given: Any = None
        self._dense: CosSin | None = None

    def dense(self, position_embeddings: Any) -> CosSin:
        """See `dense`."""
        if self._dense is None or position_embeddings is not self._given:
            self._given, self._dense = position_embeddings, dense(position_embeddings)
        return self._dense


#: Positions that a table begins with, and what it takes at most.
_FEWEST, _MOST_BYTES = 256, 32 << 20


class PositionTables:
    """Cosines and sines by position, for a rotary embedding in which a token's do not depend on the step's other tokens.

    They grow with the positions that are used. In float32, 4,096 positions of 64 dimensions take 2 MB.

    Args:
        hidden: [1, 1, hidden_size], of which only shape, dtype and device matter.
        position_ids: in the model's form; the largest one is the last of the context.
    """

    def __init__(self, rotary: Rotary, hidden: torch.Tensor, position_ids: torch.Tensor) -> None:
        self._rotary, self._hidden = rotary, hidden
        self._num_axes = 0 if position_ids.ndim == 2 else len(position_ids)
        # Beyond the context, some models scale the angles of all positions that are computed together.
        self._num_positions = int(position_ids.max()) + 1
        self._cos, self._sin = self._computed(torch.arange(1))
        self._most = _MOST_BYTES // max(1, 2 * self._cos.shape[1] * self._cos.itemsize)

    @classmethod
    def find(cls, rotary: Rotary, hidden: torch.Tensor, position_ids: torch.Tensor) -> PositionTables | None:
        """None if a token's cosines depend on other tokens, as where a scale depends on the longest context so far.

        Args:
            position_ids: in the model's form, spread over the whole context.
        """
        tables = cls(rotary, hidden, position_ids)
        if not tables.takes(position_ids):
            return None
        positions = _plain(position_ids)
        together = tables._computed(positions)
        for index in (0, len(positions) // 2, len(positions) - 1):
            alone = tables._computed(positions[index : index + 1])
            if not all(torch.equal(one[0], all_of_them[index]) for one, all_of_them in zip(alone, together, strict=True)):
                return None
        return tables

    def takes(self, position_ids: torch.Tensor) -> bool:
        """Whether all axes have the same positions."""
        return position_ids.ndim == 2 or position_ids.stride(0) == 0

    def of(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """cos and sin, [n, rotary_dim] fp32 each, dense; and each token's row in them, [num_tokens] int64, or None if that is the
        token's number."""
        needed = int(position_ids.numpy().max()) + 1
        if needed > self._most:
            return *self._computed(_plain(position_ids)), None
        if needed > len(self._cos):
            size = min(max(needed, 2 * len(self._cos), _FEWEST), max(needed, self._num_positions), self._most)
            cos, sin = self._computed(torch.arange(len(self._cos), size))
            self._cos, self._sin = torch.cat([self._cos, cos]), torch.cat([self._sin, sin])
        return self._cos, self._sin, position_ids

    @torch.inference_mode()
    def _computed(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        position_ids = positions.expand(self._num_axes, 1, -1) if self._num_axes else positions[None]
        cos, sin = self._rotary(self._hidden.expand(1, len(positions), -1), position_ids)
        return cos[0].float().contiguous(), sin[0].float().contiguous()


def _plain(position_ids: torch.Tensor) -> torch.Tensor:
    """[num_tokens] of position ids that are the same on all axes."""
    return position_ids.reshape(-1, position_ids.shape[-1])[0]
