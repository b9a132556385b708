"""The linear layers of a model that adapters can change, under the names that they have in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.fusion.modules import GatedMLP, LinearPart

#: Linear layers that the kernel of a decoder layer computes: up to four of the input product, output, gate, up, down (csrc/lora.h).
NUM_KERNEL_UPDATES = 8


@dataclass(frozen=True)
class LoraTarget:
    """A linear layer, which may be a part of a product that computes several."""

    name: str
    in_features: int
    out_features: int
    #: Index of its first output among those of the product.
    first: int
    #: Computes it, if no kernel does.
    product: nn.Module
    #: The decoder layer and the number of the update, if the layer's kernel computes it.
    place: tuple[int, int] | None = None


def lora_targets(model: nn.Module, head: nn.Module | None, *, uses_kernels: bool) -> dict[str, LoraTarget]:
    """All linear layers of a model but the output head and single experts, by name. See `enable_lora`."""
    found: dict[str, LoraTarget] = {}
    skipped: set[nn.Module] = set() if head is None else set(head.modules())
    for name, module in model.named_modules():
        if module in skipped or ".experts." in f"{name}.":
            continue
        parts = list(_parts(name, module, uses_kernels=uses_kernels))
        found |= {target.name: target for target in parts}
        if parts and not isinstance(module, LinearPart):
            skipped.update(module.modules())
    return found


def _parts(name: str, module: nn.Module, *, uses_kernels: bool) -> Iterator[LoraTarget]:
    if isinstance(module, FusedDecoderLayer):
        for place, product, sizes in module.linears():
            first = 0
            for number, (own_name, size) in enumerate(sizes.items(), start=place):
                at = (module.index, number) if uses_kernels and module.kernel is not None else None
                yield LoraTarget(f"{name}.{own_name}", _in_features(product), size, first, product, at)
                first += size
    elif isinstance(module, GatedMLP):
        for product, sizes in zip((module.gate_up, module.down), module.linears, strict=True):
            first = 0
            for own_name, size in sizes.items():
                yield LoraTarget(f"{name}.{own_name}", _in_features(product), size, first, product)
                first += size
    elif isinstance(module, LinearPart):
        first, size = module.outputs
        yield LoraTarget(name, _in_features(module.product), size, first, module.product)
    elif isinstance(getattr(module, "in_features", None), int) and isinstance(getattr(module, "out_features", None), int):
        yield LoraTarget(name, _in_features(module), _out_features(module), 0, module)


def _in_features(module: Any) -> int:
    return int(module.in_features)


def _out_features(module: Any) -> int:
    return int(module.out_features)
