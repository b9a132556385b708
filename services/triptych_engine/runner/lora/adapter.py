"""An adapter's weights: read from PEFT's safetensors, checked against the model, and packed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import nn

from triptych_engine.runner.cpu.kernel_args import LoraUpdate
from triptych_engine.runner.lora.directory import AdapterFiles
from triptych_engine.runner.lora.peft_config import PeftConfig, refusal
from triptych_engine.runner.lora.targets import NUM_KERNEL_UPDATES, LoraTarget

_PREFIX = "base_model.model."
_SUFFIXES = (".lora_A.weight", ".lora_B.weight")
#: Sizes to which the kernel's matrices are padded: of A the ranks, of B the outputs (csrc/lora.h).
_LANES, _PANEL = 16, 32


@dataclass(frozen=True)
class Update:
    """The update of one layer by torch: out[first : first + len(b)] += scale * b (a x)."""

    first: int
    a: torch.Tensor  # [rank, in_features]
    b: torch.Tensor  # [out_features, rank]
    scale: float


@dataclass(eq=False)
class LoraAdapter:
    """An adapter that is ready. It lives while somebody holds it: the store, requests, the rows of the batch."""

    name: str
    #: sha256 of its configuration and weights, as they were read, hex. Sequences share blocks of the KV cache only if it is equal.
    digest: str
    num_bytes: int = 0
    #: For each decoder layer that a kernel computes: its updates.
    table: Any = None
    #: Product that is not in a kernel -> updates of its layers.
    updates: dict[nn.Module, list[Update]] = field(default_factory=dict)
    _kept_alive: list[torch.Tensor] = field(default_factory=list)


def read_adapter(files: AdapterFiles, targets: dict[str, LoraTarget], dtype: torch.dtype) -> LoraAdapter:
    """Read an adapter for a model with these layers.

    Args:
        dtype: its numbers are rounded to this one.

    Raises:
        InvalidRequestError: it does not fit the model, or has what is not supported; the error says what.
    """
    try:
        config = PeftConfig(files.name, files.config.read_bytes())
        data = files.weights.read_bytes()
        tensors = load_safetensors(data)
    except OSError as error:  # without the path
        raise refusal(files.name, f"its files cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        raise refusal(files.name, f"its weights cannot be read: {str(error)[:200]}") from error
    adapter = LoraAdapter(files.name, hashlib.sha256(config.canonical + b"\0" + data).hexdigest())
    del data
    modules = _modules_of(files.name, tensors)
    config.check_complete(modules, targets)
    num_layers = 1 + max((target.place[0] for target in targets.values() if target.place is not None), default=-1)
    adapter.table = (LoraUpdate * (num_layers * NUM_KERNEL_UPDATES))()
    for module in modules:
        a, b = (tensors.pop(f"{_PREFIX}{module}{suffix}") for suffix in _SUFFIXES)
        if (target := targets.get(module)) is None:
            why = f"it changes {module[:200]}, which is no linear layer of this model that adapters can change"
            raise refusal(files.name, why)
        if not (a.is_floating_point() and b.is_floating_point() and a.isfinite().all() and b.isfinite().all()):
            raise refusal(files.name, f"the weights of {module} are not all finite numbers of a floating point type")
        _check_shapes(files.name, module, (tuple(a.shape), tuple(b.shape)), config.rank(module), target)
        _put(adapter, target, a, b, config.scale(module), dtype)
    return adapter


def _modules_of(name: str, tensors: dict[str, torch.Tensor]) -> list[str]:
    """The modules that an adapter changes. Each must have both matrices, and there may be nothing else."""
    modules: dict[str, int] = {}
    for key in tensors:
        suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), None)
        if suffix is None or not key.startswith(_PREFIX):
            raise refusal(name, f"its file has a tensor {key[:200]!r}, which is not supported; lora_A and lora_B are")
        module = key.removeprefix(_PREFIX).removesuffix(suffix)
        modules[module] = modules.get(module, 0) + 1
    if not modules:
        raise refusal(name, "its file has no weights")
    for module, number in modules.items():
        if number != len(_SUFFIXES):
            raise refusal(name, f"of {module[:200]} it has only one of lora_A and lora_B")
    return list(modules)


def _check_shapes(name: str, module: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], rank: int, target: LoraTarget) -> None:
    wanted = (rank, target.in_features), (target.out_features, rank)
    for letter, shape, expected in zip("AB", shapes, wanted, strict=True):
        if shape != expected:
            why = f"with rank {rank} on a layer of {target.in_features} inputs and {target.out_features} outputs"
            raise refusal(name, f"lora_{letter} of {module} has the shape {list(shape)}; {why} it must be {list(expected)}")


def _put(adapter: LoraAdapter, target: LoraTarget, a: torch.Tensor, b: torch.Tensor, scale: float, dtype: torch.dtype) -> None:
    if target.place is None:
        device = next((parameter.device for parameter in target.product.parameters()), torch.device("cpu"))
        update = Update(target.first, a.to(device, dtype), b.to(device, dtype), scale)
        adapter.updates.setdefault(target.product, []).append(update)
        adapter.num_bytes += update.a.nbytes + update.b.nbytes
        return
    if torch.equal(a.bfloat16().float(), a.float()) and torch.equal(b.bfloat16().float(), b.float()):
        dtype = torch.bfloat16  # exact
    packed = _packed(a, b, dtype)
    layer, number = target.place
    adapter.table[layer * NUM_KERNEL_UPDATES + number] = LoraUpdate(
        packed[0].data_ptr(), packed[1].data_ptr(), target.in_features, target.out_features, target.first,
        len(a), dtype == torch.bfloat16, scale,
    )  # fmt: skip
    adapter._kept_alive += packed
    adapter.num_bytes += sum(one.nbytes for one in packed)


def _packed(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """A and B in the kernel's layout, see LoraUpdate in csrc/lora.h."""
    down = nn.functional.pad(a.to(dtype).T, (0, -len(a) % _LANES)).contiguous()
    up = nn.functional.pad(b.to(dtype), (0, 0, 0, -len(b) % _PANEL)).view(-1, _PANEL, len(a)).transpose(1, 2).contiguous()
    return [down, up]
