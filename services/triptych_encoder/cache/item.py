"""A media item on its way through the encoder: preprocessed, then encoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from triptych.v1 import common_pb2
from triptych_common.rpc.tensors import DATA_TYPES, num_bytes


@dataclass(frozen=True)
class PreprocessedItem:
    """The towers' inputs for one item."""

    modality: common_pb2.Modality
    inputs: Mapping[str, torch.Tensor]  # argument of the tower -> tensor; the first dimension grows with the number of items
    num_tokens: int  # placeholder tokens in a prompt; one embedding each
    layout: Mapping[str, torch.Tensor]  # tensors that positions depend on, by the modeling code's names


@dataclass(frozen=True)
class HostTensor:
    """A tensor in its wire format: row-major, little-endian."""

    header: common_pb2.Tensor  # dtype and shape, no payload
    data: bytes

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> HostTensor:
        tensor = tensor.detach().contiguous().cpu()
        dtype = DATA_TYPES[str(tensor.dtype).removeprefix("torch.")]
        # Through bytes, because numpy has no bfloat16.
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        return cls(common_pb2.Tensor(dtype=dtype, shape=tensor.shape), data)

    def has_consistent_size(self) -> bool:
        """Whether the length of the data matches dtype and shape."""
        return num_bytes(self.header) == len(self.data)


@dataclass(frozen=True)
class EncodedItem:
    """The named tensors of an item: embeds first, then deepstack.{i}, then the layout."""

    tensors: Mapping[str, HostTensor]
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        return sum(len(tensor.data) for tensor in self.tensors.values())


def encoded(item: PreprocessedItem, embeddings: Mapping[str, torch.Tensor]) -> EncodedItem:
    """Join an item's embeddings and its layout."""
    tensors = {name: HostTensor.from_torch(tensor) for name, tensor in (*embeddings.items(), *item.layout.items())}
    return EncodedItem(tensors, item.num_tokens)
