"""Lets attentions of the latent kind (MLA) keep latents in the KV cache, see attention/latent.py.

Whether an attention is of that kind does not depend on its class. One that has a method `expand_kv`, with a layer `kv_b_proj` for
it, is run on a real input. It keeps latents if it hands on the expanded keys and values unchanged, and its heads have the same
results from the latents. Otherwise it keeps the keys and values of its heads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from triptych_engine.runner.attention.latent import HeadProducts, LatentHeads
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.fusion.calls import is_same_tensor
from triptych_engine.runner.fusion.layer import TRIAL_BLOCK_SIZE, first_tokens
from triptych_engine.runner.fusion.recognition import TOLERANCE, is_close
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Name of the attention while attentions are compared.
TRIED_ATTENTION = "triptych_tried_latent"
#: Latents have a multiple of so many numbers, as kernels want it.
_LANES = 16

#: [num_heads, out_features, in_features] -> the products with these weights.
PackHeads = Callable[[torch.Tensor], HeadProducts]


def keep_latents(
    model: PreTrainedModel, token_ids: torch.Tensor, verdicts: Verdicts, pack: PackHeads, *, expands: bool = True
) -> int:
    """Let the attentions of the latent kind keep latents, in place, where they compute the same then; returns how many do.

    Args:
        token_ids: [num_tokens] of a prompt on which they are compared.
        verdicts: of the same model, if it was loaded before in this process.
        expands: let latents be expanded where that takes less time. Results then depend on how many tokens are computed together.
    """
    found: dict[str, _Trial] = {}
    for name, module in model.named_modules():
        trial = _Trial.of(module, pack, expands)
        if trial is not None:
            found[name] = trial
    if any(("latent attention", name) not in verdicts for name in found):
        _try_all(model, token_ids, found)
    num_kept = 0
    for name, trial in found.items():
        if verdicts.of(("latent attention", name), lambda trial=trial: trial.is_same):  # type: ignore[misc]
            trial.keep()
            num_kept += 1
    if found:
        log.info("%d of %d attentions keep latents in the KV cache", num_kept, len(found))
    return num_kept


def _try_all(model: PreTrainedModel, token_ids: torch.Tensor, trials: dict[str, _Trial]) -> None:
    before = model.config._attn_implementation
    model.set_attn_implementation(TRIED_ATTENTION)
    for trial in trials.values():
        trial.attention.expand_kv = trial
    try:
        with torch.inference_mode():
            model(input_ids=token_ids[None], use_cache=False)
    except Exception as error:  # the modules' code is not ours
        log.warning("the keys and values of all heads are kept, not latents: %s", error)
        for trial in trials.values():
            trial.refuse()
    finally:
        for trial in trials.values():
            del trial.attention.expand_kv
        model.set_attn_implementation(before)


class _Trial:
    """An attention that may keep latents. While it is tried, this is in the place of its `expand_kv`."""

    def __init__(self, attention: Any, heads: LatentHeads, tolerance: float | None) -> None:
        """tolerance: as of `is_close`; None for that of the model's dtype."""
        self.attention, self._heads, self._tolerance, self._expand = attention, heads, tolerance, attention.expand_kv
        self._results: list[bool] = []

    @classmethod
    def of(cls, module: nn.Module, pack: PackHeads, expands: bool) -> _Trial | None:
        """None if the module has not the parts of an attention of the latent kind."""
        product: Any = getattr(module, "kv_b_proj", None)
        rank, key_size, value_size = (getattr(module, name, 0) for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
        if product is None or product.bias is not None or not callable(getattr(module, "expand_kv", None)):
            return None
        if rank == 0 or rank % _LANES or product.in_features != rank or product.out_features % (key_size + value_size):
            return None
        if type(product) is nn.Linear:
            weight, tolerance = product.weight.data, None
        elif hasattr(product, "dequantize"):  # as in vLLM, the heads' weights are not quantised; rounding them changes little more
            weight, tolerance = product.dequantize().bfloat16().float(), TOLERANCE[torch.bfloat16]
        else:
            return None
        keys, values = weight.view(-1, key_size + value_size, rank).split([key_size, value_size], 1)
        absorbing = pack(keys.transpose(1, 2).contiguous())
        return cls(
            module, LatentHeads(absorbing, pack(values.contiguous()), pack(keys.contiguous()) if expands else None), tolerance
        )

    @property
    def is_same(self) -> bool:
        """Whether it was tried, and its heads had the same results from latents."""
        return self._results != [] and all(self._results)

    def keep(self) -> None:
        """Let the attention keep latents from now on."""
        self.attention.expand_kv = self._heads
        self.attention.kv_b_proj = nn.Identity()  # its weight is among those of the heads

    def refuse(self) -> None:
        """Let the attention keep the keys and values of its heads."""
        self._results = [False]

    def __call__(self, latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        expanded = self._expand(latent, rotated)
        self._expanded = latent, rotated, *expanded
        return expanded

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        """What the attention does in its model, given what it hands on; notes whether latents have the same results."""
        latent, rotated, *expanded = self._expanded
        own = _attended(query, key, value, options)
        if (
            options.get("s_aux") is not None
            or options.get("sliding_window")
            or not all(map(is_same_tensor, (key, value), expanded))
        ):
            self._results.append(False)
            return own
        latent_key, latent_value = self._heads(latent, rotated)
        absorbed = self._heads.absorb(query[0].transpose(0, 1)).transpose(0, 1)[None]
        got = self._heads.project(_attended(absorbed, latent_key, latent_value, options, values_in_keys=True)[0])[None]
        pairs = [(own, got)]
        if self._heads.expands:
            parts = self._heads.expand(latent_key[0, 0], 0, key.shape[1])
            pairs += [(one[0].transpose(0, 1), part) for one, part in zip((key, value), parts, strict=True)]
        tolerance = TOLERANCE[value.dtype] if self._tolerance is None else self._tolerance
        self._results.append(all(is_close(wanted.float(), have.float(), tolerance) for wanted, have in pairs))
        return own


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any], *, values_in_keys: bool = False
) -> torch.Tensor:
    """Of one sequence: query [1, Hq, T, D], key and value [1, Hkv, T, D] -> [1, T, Hq, Dv]."""
    backend, num_tokens = TorchAttention(query.device), query.shape[2]
    shape = LayerShape(key.shape[1], key.shape[3], value.shape[3], values_in_keys=values_in_keys)
    backend.allocate({0: shape}, -(-num_tokens // TRIAL_BLOCK_SIZE), TRIAL_BLOCK_SIZE, value.dtype)
    backend.begin(first_tokens(num_tokens))
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    scaling = query.shape[3] ** -0.5 if options.get("scaling") is None else float(options["scaling"])
    window, softcap = int(options.get("sliding_window") or 0), float(options.get("softcap") or 0.0)
    return backend.forward(0, queries, keys, values, scaling=scaling, window=window, softcap=softcap, sinks=None)[None]


def _tried_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    trial = getattr(module, "expand_kv", None)
    attend = trial.attend if isinstance(trial, _Trial) else _attended
    return attend(query, key, value, options), None


# No mask function of this name is registered, so transformers builds no mask.
AttentionInterface.register(TRIED_ATTENTION, _tried_attention)
