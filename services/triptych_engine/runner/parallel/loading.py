"""Loads a rank's share of a model from safetensors, tensor by tensor: no rank reads more of a divided weight than its part."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightRenaming, rename_source_key
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.weights import weight_files

from triptych_engine.runner.parallel.division import Cut
from triptych_engine.runner.parallel.group import RankGroup
from triptych_engine.runner.parallel.modules import GatheredLinear, RowParallelLinear, VocabParallelEmbedding
from triptych_engine.runner.parallel.plan import Share, share_of
from triptych_engine.runner.parallel.quantized import ShareSource
from triptych_engine.runner.quantization.filling import WeightSource, empty_model, fill_model
from triptych_engine.runner.quantization.tensor import QuantizedModules


class StoredPart:
    """A part of a tensor in a file. transformers reads it as it reads a whole one, which is a slice of all: `stored[...]`.

    Args:
        stored: safetensors' slice of the whole tensor.
        cut: of the parameter, of which this may be a piece: one expert's, or only gate of gate and up.
    """

    def __init__(self, stored: Any, cut: Cut) -> None:
        self._stored, self._cut = stored, cut

    def __getitem__(self, index: Any) -> torch.Tensor:
        shape = self._stored.get_shape()
        before, after = [slice(None)] * (len(shape) + self._cut.dim), [slice(None)] * (-1 - self._cut.dim)
        pieces = [self._stored[(*before, slice(*span), *after)] for span in self._ranges(shape[self._cut.dim])]
        return torch.cat(pieces, self._cut.dim) if len(pieces) > 1 else pieces[0]

    def _ranges(self, size: int) -> tuple[tuple[int, int], ...]:
        """The ranges of the stored tensor: all, or those within the first of equal parts that are stored one by one."""
        return tuple(span for span in self._cut.ranges if span[1] <= size)


def load_share(
    path: Path, name: str, cls: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype, group: RankGroup
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """A model with this rank's share of the weights, whose modules work with those of the other ranks; and what `from_pretrained`
    reports with `output_loading_info`.

    Raises:
        UnsupportedModelError: the model cannot be divided among so many ranks.
        OSError, RuntimeError, SafetensorError: as of `from_pretrained`.
    """
    whole = empty_model(cls, config)
    share = _share(name, whole, group)
    with contextlib.ExitStack() as files:
        model, info = _share_only(cls, share).from_pretrained(
            None,
            config=config,
            state_dict=_parts(path, whole, share, files),
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    _connect(model, share, group)
    return model, info


def fill_share(
    name: str,
    cls: type[PreTrainedModel],
    group: RankGroup,
    whole: PreTrainedModel,
    source: WeightSource,
    modules: QuantizedModules,
    path: Path,
) -> PreTrainedModel:
    """The same from a checkpoint with quantised weights.

    Args:
        whole: the model, whose parameters are on the meta device.
    """
    share = _share(name, whole, group, source.largest_block)
    model = empty_model(_share_only(cls, share), whole.config)
    fill_model(model, ShareSource(source, share, whole), modules, path)
    _connect(model, share, group)
    return model


def _share(name: str, whole: PreTrainedModel, group: RankGroup, least: int = 1) -> Share:
    try:
        return share_of(whole, group.rank, group.size, least)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"cannot serve {name} with --tensor-parallel-size {group.size}: {error}") from None


def _share_only(cls: type[PreTrainedModel], share: Share) -> type[PreTrainedModel]:
    """A class whose parameters have the sizes of a rank's share."""

    class ShareOnly(cls):
        def __init__(self, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            _shrink(self, share)

    # transformers looks up conversions by these.
    ShareOnly.__name__, ShareOnly.__qualname__, ShareOnly.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return ShareOnly


def _parts(path: Path, whole: PreTrainedModel, share: Share, files: contextlib.ExitStack) -> dict[str, Any]:
    """Name in the checkpoint -> what `tensor[...]` reads."""
    transforms = get_model_conversion_mapping(whole)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    operations = {source: one.operations for one in converters for source in one.source_patterns}
    names, prefix, parts = whole.state_dict(), whole.base_model_prefix, {}
    for file in weight_files(path):
        handle = files.enter_context(safe_open(file, framework="pt"))
        for key in handle.keys():  # noqa: SIM118 - it is no mapping
            name, source = rename_source_key(key, renamings, converters, prefix, names)
            stored = handle.get_slice(key)
            cut = share.cuts.get(name if name in names else key)
            if cut is not None:
                _check(key, stored.get_shape(), cut, operations.get(source, ()), path)
            parts[key] = stored if cut is None else StoredPart(stored, cut)
    return parts


def _check(key: str, shape: list[int], cut: Cut, operations: Sequence[Any], path: Path) -> None:
    """Refuse a tensor of which the cut would not be the rank's part. Its other dimensions are checked when it is loaded."""
    moving = [type(one).__name__ for one in operations if not isinstance(one, (MergeModulelist, Concatenate))]
    if moving:
        raise UnsupportedModelError(f"{key} cannot be divided among ranks: it is stored in another form ({', '.join(moving)})")
    if len(shape) < -cut.dim or shape[cut.dim] not in (cut.size, cut.size // cut.parts):
        raise StartupError(f"the weights in {path} do not fit its config.json: {key} has the shape {shape}")


def _shrink(model: PreTrainedModel, share: Share) -> None:
    """Leave each divided parameter, which has no memory yet, only the rank's part."""
    for name, cut in share.cuts.items():
        parent, _, leaf = name.rpartition(".")
        module: Any = model.get_submodule(parent)
        whole = getattr(module, leaf)
        shape = list(whole.shape)
        shape[cut.dim] = cut.length
        setattr(module, leaf, nn.Parameter(whole.new_empty(shape), requires_grad=False))
        if isinstance(module, nn.Linear) and leaf == "weight":
            module.out_features, module.in_features = shape
        elif isinstance(module, nn.Embedding):
            module.num_embeddings, module.padding_idx = shape[0], None
    for name, count in share.groups.items():
        model.get_submodule(name).num_key_value_groups = count


def _connect(model: PreTrainedModel, share: Share, group: RankGroup) -> None:
    """Let the ranks add up and join what their shares compute."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    # Columns are still where the file is mapped. Those of linear layers stay there until they are packed, layer by layer: a copy of
    # all of them would be a third of the rank's share.
    for name in share.cuts.keys() & parameters.keys():  # quantised weights are none
        if name.removesuffix(".weight") not in share.summed:
            parameters[name].data = parameters[name].data.contiguous()
    for name in parameters.keys() & set(share.biases) if group.rank else ():
        parameters[name].data = torch.zeros_like(parameters[name])
    for name, columns in share.summed.items():
        _replace(model, name, RowParallelLinear(model.get_submodule(name), group, columns))
    for name in share.summed_experts:
        model.get_submodule(name).register_forward_hook(lambda module, args, output: group.all_reduce(output))
    head = model.get_output_embeddings()
    for name, sizes in share.joined.items():
        linear = model.get_submodule(name)
        joined = GatheredLinear(linear, group, sizes)
        if linear is head:
            model.set_output_embeddings(joined)
        else:
            _replace(model, name, joined)
    embedding = model.get_input_embeddings()
    model.set_input_embeddings(VocabParallelEmbedding(embedding, group, share.tokens))


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)
