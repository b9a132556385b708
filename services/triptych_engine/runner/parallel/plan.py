"""Which weights of a model are divided among ranks, and how.

The plan is transformers' own (`base_model_tp_plan` of a family's configuration), which names modules and styles. What it leaves
whole in some families is added here. Embedding and output head are divided by tokens in every family. From the plan and the shapes
of the weights follows the share of a rank. It is refused if it is much more than its part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from triptych.errors import UnsupportedModelError

from triptych_engine.runner.parallel.division import Cut, cut_evenly, head_shares

#: A rank may have so much more than its part of the weights, relative to all of them.
_TOLERANCE = 0.1
#: transformers' names of styles: outputs divided; outputs divided, but all ranks get all; inputs divided; inputs divided, but all
#: ranks have all; gate and up in one weight, outputs of both divided; experts of which each rank computes a part. (Older versions
#: have other names.)
_COLUMN, _GATHERED, _ROW, _ROW_OF_ALL = "colwise", "colwise_gather_output", "rowwise", "rowwise_split_input"
_PACKED, _EXPERTS = "packed_colwise", "moe_tp_experts"
_ALIASES = {"colwise_rep": _GATHERED, "rowwise_rep": _ROW_OF_ALL}
_INTERLEAVED, _PER_HEAD = "interleaved_colwise", "per_head"
_DIVIDED = (_COLUMN, _GATHERED, _ROW, _ROW_OF_ALL, _PACKED, _EXPERTS, _INTERLEAVED, _PER_HEAD)
#: torch's grouped products want rows that begin at multiples of 16 bytes.
_LEAST_OF_EXPERTS = 8
#: Styles after which a weight stays whole, and those of embedding and head.
_WHOLE = ("replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "embedding_rowwise", "embedding_colwise")
_MLA = {"q_proj": _COLUMN, "q_b_proj": _COLUMN, "kv_b_proj": _COLUMN, "o_proj": _ROW}
_ATTENTION = {"q_proj": _COLUMN, "k_proj": _COLUMN, "v_proj": _COLUMN, "o_proj": _ROW}
#: Family -> end of a module's or parameter's name -> style.
_ADDED: dict[str, Mapping[str, str]] = {
    "deepseek_v2": {f"self_attn.{name}": style for name, style in _MLA.items()},
    "deepseek_v3": {f"self_attn.{name}": style for name, style in _MLA.items()},
    "gpt_oss": {
        **{f"self_attn.{name}": style for name, style in _ATTENTION.items()},
        "self_attn.sinks": _PER_HEAD,
        "mlp.experts.gate_up_proj": _INTERLEAVED,
        "mlp.experts.down_proj": _ROW,
        "mlp.experts": _EXPERTS,
    },
}


@dataclass
class Share:
    """What one rank has of a model, by names of parameters and modules."""

    rank: int
    #: Parameter -> its part.
    cuts: dict[str, Cut] = field(default_factory=dict)
    #: Linear layers whose outputs are added up, and the inputs that are the rank's if it gets all.
    summed: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    #: Modules with other weights whose outputs are added up.
    summed_experts: list[str] = field(default_factory=list)
    #: Linear layers whose outputs are joined: number of outputs of each rank.
    joined: dict[str, list[int]] = field(default_factory=dict)
    #: Attention -> query heads for each key and value head.
    groups: dict[str, int] = field(default_factory=dict)
    #: Tokens whose embeddings the rank has: the first one, and the end.
    tokens: tuple[int, int] = (0, 0)
    #: Parameters that are added to a sum, so that only one rank's count.
    biases: list[str] = field(default_factory=list)


def share_of(model: PreTrainedModel, rank: int, size: int, least: int = 1) -> Share:
    """The share of a rank. The model's parameters may be on the meta device.

    Args:
        least: a rank's part of inner dimensions must be a multiple of it.

    Raises:
        UnsupportedModelError: the family has no plan, or one that leaves too much whole; or there are too many ranks.
    """
    styles = _styles(model)
    shares = [_Division(model, styles, one, size, least).share() for one in range(size)]  # what one rank is refused, all are
    return shares[rank]


def _styles(model: PreTrainedModel) -> dict[str, str]:
    """Module or parameter -> style, for all that are divided."""
    family = model.config.get_text_config().model_type
    plan, added = dict(model.tp_plan or {}), _ADDED.get(family, {})
    if not added and not any(_ALIASES.get(style, style) in _DIVIDED for name, style in plan.items() if name != "lm_head"):
        raise UnsupportedModelError(f"transformers has no plan to divide models of the family {family} among ranks")
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    styles: dict[str, str] = {}
    for name in names:
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None:
            style = next((added[end] for end in added if name.endswith(f".{end}")), None)
        if style is not None and (style := _ALIASES.get(style, style)) not in _WHOLE:
            styles[name] = style
    unknown = sorted(set(styles.values()) - set(_DIVIDED))
    if unknown:
        raise UnsupportedModelError(f"models of the family {family} cannot be divided among ranks: {unknown[0]} is not supported")
    return styles


class _Division:
    def __init__(self, model: PreTrainedModel, styles: dict[str, str], rank: int, size: int, least: int) -> None:
        self._model, self._styles, self._rank, self._size, self._least = model, styles, rank, size, least
        self._num_q_heads = int(model.config.get_text_config().num_attention_heads)
        self._share = Share(rank)

    def share(self) -> Share:
        ends = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        for name, module in self._model.named_modules():
            if module is ends[0]:
                self._divide_embedding(name, module)
            elif module is ends[1]:
                self._divide_outputs(name, module)
            elif any(f"{name}.{part}" in self._styles for part in _names_below(module)):
                self._divide_children(name, module)
        self._check()
        return self._share

    def _divide_embedding(self, name: str, embedding: nn.Module) -> None:
        cut = self._even(_rows(embedding), name).along(-2)
        self._share.cuts[f"{name}.weight"] = cut
        self._share.tokens = cut.ranges[0]

    def _divide_outputs(self, name: str, linear: nn.Module) -> None:
        cut = self._even(_rows(linear), name)
        self._cut_rows(name, linear, cut)
        self._share.joined[name] = [cut_evenly(_rows(linear), rank, self._size, name).length for rank in range(self._size)]

    def _divide_children(self, name: str, module: nn.Module) -> None:
        """Divide the layers of an attention, an MLP, or experts."""
        children = {part: self._styles[f"{name}.{part}"] for part in _names_below(module) if f"{name}.{part}" in self._styles}
        for part, style in children.items():
            child, path = getattr(module, part), f"{name}.{part}"
            if style == _GATHERED:
                self._divide_outputs(path, _linear(child, path))
            elif style == _ROW_OF_ALL:
                cut = self._even(child.in_features, path, self._least)
                self._cut_columns(path, _linear(child, path), cut)
                self._share.summed[path] = cut.ranges[0]
        rows = [part for part, style in children.items() if style == _ROW]
        if not rows:
            return
        if len(rows) > 1:
            raise UnsupportedModelError(f"{name} cannot be divided among ranks: it has several outputs ({', '.join(rows)})")
        (row,) = rows
        if isinstance(getattr(module, row), nn.Parameter):
            self._divide_experts(name, module, children, row)
        elif _is_attention(name):
            self._divide_attention(name, module, children, row)
        else:
            self._divide_mlp(name, module, children, row)

    def _divide_mlp(self, name: str, module: nn.Module, children: dict[str, str], row: str) -> None:
        down = _linear(getattr(module, row), f"{name}.{row}")
        cut = self._even(down.in_features, f"{name}.{row}", self._least)
        self._cut_columns(f"{name}.{row}", down, cut)
        self._share.summed[f"{name}.{row}"] = None
        for part in (part for part, style in children.items() if style == _COLUMN):
            path = f"{name}.{part}"
            self._cut_rows(path, _linear(getattr(module, part), path), _of_size(cut, _rows(getattr(module, part)), path))

    def _divide_attention(self, name: str, module: nn.Module, children: dict[str, str], row: str) -> None:
        num_q_heads = self._num_q_heads
        num_kv_heads = num_q_heads // int(getattr(module, "num_key_value_groups", 1))
        heads = head_shares(num_q_heads, num_kv_heads, self._size)[self._rank]
        out = _linear(getattr(module, row), f"{name}.{row}")
        self._cut_columns(f"{name}.{row}", out, _of_size(heads.query, out.in_features, f"{name}.{row}"))
        self._share.summed[f"{name}.{row}"] = None
        self._share.groups[name] = heads.group
        _check_norms(name, module, out.in_features // num_q_heads)
        for part, style in children.items():
            path, child = f"{name}.{part}", getattr(module, part)
            if style == _PER_HEAD:
                self._share.cuts[path] = _of_size(heads.query, len(child), path)
            elif style == _COLUMN:
                cut = heads.kv if part in ("k_proj", "v_proj") else heads.query
                self._cut_rows(path, _linear(child, path), _of_size(cut, _rows(child), path))

    def _divide_experts(self, name: str, module: nn.Module, children: dict[str, str], row: str) -> None:
        """Give each rank a part of every expert. gate_up_proj: [experts, 2 * inner, hidden], or with gate and up interleaved
        [experts, hidden, 2 * inner]; down_proj: [experts, hidden, inner], or [experts, inner, hidden]."""
        inwards = [part for part, style in children.items() if style in (_PACKED, _INTERLEAVED)]
        if len(inwards) != 1:
            raise UnsupportedModelError(f"{name} cannot be divided among ranks: gate and up are not one weight")
        (gate_up,) = inwards
        is_interleaved = children[gate_up] == _INTERLEAVED
        both, down, cuts = getattr(module, gate_up), getattr(module, row), self._share.cuts
        inner = down.shape[-2 if is_interleaved else -1]
        cut = self._even(inner, f"{name}.{row}", max(self._least, _LEAST_OF_EXPERTS))
        cut_of_both = cut.times(2) if is_interleaved else cut.repeated(2)
        cuts[f"{name}.{gate_up}"] = _of_size(
            cut_of_both.along(-1 if is_interleaved else -2), both.shape[-1 if is_interleaved else -2], name
        )
        cuts[f"{name}.{row}"] = cut.along(-2 if is_interleaved else -1)
        if hasattr(module, f"{gate_up}_bias"):
            cuts[f"{name}.{gate_up}_bias"] = cut_of_both
        if hasattr(module, f"{row}_bias"):
            self._share.biases.append(f"{name}.{row}_bias")
        self._share.summed_experts.append(name)

    def _even(self, count: int, what: str, least: int = 1) -> Cut:
        return cut_evenly(count, self._rank, self._size, what, least)

    def _cut_rows(self, name: str, linear: nn.Module, cut: Cut) -> None:
        self._share.cuts[f"{name}.weight"] = cut.along(-2)
        if getattr(linear, "bias", None) is not None:
            self._share.cuts[f"{name}.bias"] = cut

    def _cut_columns(self, name: str, linear: nn.Linear, cut: Cut) -> None:
        self._share.cuts[f"{name}.weight"] = cut
        if linear.bias is not None:
            self._share.biases.append(f"{name}.bias")

    def _check(self) -> None:
        """Refuse a share that is much more than a rank's part."""
        total, own, whole = 0, 0, ("", 0)
        for name, parameter in self._model.named_parameters():
            cut, count = self._share.cuts.get(name), parameter.numel()
            total += count
            own += count if cut is None else count // cut.size * cut.length
            if cut is None and count > whole[1]:
                whole = (name, count)
        if own > total * (1 / self._size + _TOLERANCE):
            raise UnsupportedModelError(
                f"the model cannot be divided among {self._size} ranks: one would have {own} of its {total} weights; "
                f"{whole[0]}, for example, would not be divided"
            )


def _names_below(module: nn.Module) -> list[str]:
    """Names of a module's children and own parameters."""
    return [name for name, _ in module.named_children()] + [name for name, _ in module.named_parameters(recurse=False)]


def _check_norms(name: str, module: nn.Module, head_dim: int) -> None:
    """Refuse norms of queries and keys that have weights for each head, or for all heads together."""
    for norm in ("q_norm", "k_norm"):
        weight = getattr(getattr(module, norm, None), "weight", None)
        if weight is not None and weight.numel() > head_dim:
            raise UnsupportedModelError(f"{name}.{norm} cannot be divided among ranks: it has weights for each head")


def _is_attention(name: str) -> bool:
    return "attn" in name.rpartition(".")[2] or "attention" in name.rpartition(".")[2]


def _linear(module: nn.Module, name: str) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise UnsupportedModelError(f"{name} cannot be divided among ranks: it is a {type(module).__name__}")
    return module


def _rows(module: Any) -> int:
    return int(module.weight.shape[0])


def _of_size(cut: Cut, size: int, name: str) -> Cut:
    """A cut of a dimension with a multiple of its entries. Raises UnsupportedModelError."""
    if size % cut.size:
        raise UnsupportedModelError(f"{name} cannot be divided among ranks: it has {size} entries for {cut.size}")
    return cut.times(size // cut.size)
