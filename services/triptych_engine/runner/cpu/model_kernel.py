"""A whole decoder of the common kind as one kernel call: embedding, rotary embedding, layers, last norm and output head.

Between two kernel calls, threads fall asleep, and the weights that a step reads have driven Python's and torch's own code out of
the processor's caches. With one sequence, the calls of the parts around the layers took a tenth of a step on a Zen 3.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernel_args import DecoderEndsArgs
from triptych_engine.runner.cpu.layer_kernel import LayerStack
from triptych_engine.runner.cpu.linear.layers import KernelLinear, WideHead
from triptych_engine.runner.cpu.linear.packing import packed_weight
from triptych_engine.runner.cpu.linear.quant import QuantEmbedding
from triptych_engine.runner.fusion.modules import FusedRMSNorm
from triptych_engine.runner.fusion.rotary import PositionTables


class ModelKernel:
    """See `WholeModel`.

    Args:
        embedding: one that the kernel does not know is called.
        head: computes in the format of the layers.
        embedding_scale: what the embedding returns is multiplied by it.
    """

    def __init__(
        self,
        stack: LayerStack,
        embedding: nn.Module,
        tables: PositionTables,
        norm: FusedRMSNorm,
        head: KernelLinear,
        embedding_scale: float,
    ) -> None:
        self._stack, self._embedding, self._tables, self._embedding_scale = stack, embedding, tables, embedding_scale
        table, bits, scale = _embedding_table(embedding, head.out_features)
        self._looks_up = table is not None
        self._kept_alive, self._vocab_size = (table, norm, head), head.out_features
        address = None if table is None else table.data_ptr()
        rounds = norm.dtype == torch.bfloat16
        self._ends = DecoderEndsArgs(
            address, norm.scale.data_ptr(), packed_weight(head), scale * embedding_scale, norm.eps, bits, rounds
        )

    @classmethod
    def of(
        cls,
        stack: LayerStack,
        embedding: nn.Module,
        tables: PositionTables,
        norm: nn.Module,
        head: nn.Module,
        embedding_scale: float,
    ) -> ModelKernel | None:
        """The kernel for these parts; None if it cannot compute them."""
        linear = head.linear if isinstance(head, WideHead) else head
        if not isinstance(norm, FusedRMSNorm) or not isinstance(linear, KernelLinear) or linear.weight is None:
            return None
        if linear.weight_format != stack.weight_format or (linear is head and norm.dtype != torch.float32):
            return None
        return cls(stack, embedding, tables, norm, linear, embedding_scale)

    def takes(self, position_ids: torch.Tensor) -> bool:
        return self._tables.takes(position_ids)

    def logits(
        self,
        backend: CpuAttention,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        num_tokens, num_wanted = token_ids.shape[0], wanted.shape[0]  # a tensor's `len` is a call in Python
        ids, x = None, None
        if inputs_embeds is None and self._looks_up:
            ids = token_ids.data_ptr()
        else:
            embeds = self._embedding(token_ids[None]) if inputs_embeds is None else inputs_embeds
            x = embeds[0].float().contiguous()
            if self._embedding_scale != 1:
                x = x * self._embedding_scale
        cos, sin, rows = self._tables.of(position_ids)
        out, logits = torch.empty(num_tokens, self._ends.head.in_features), torch.empty(num_wanted, self._vocab_size)
        self._stack.run(
            backend, num_tokens, cos=cos, sin=sin, token_ids=ids, x=None if x is None else x.data_ptr(), out=out.data_ptr(),
            positions=None if rows is None else rows.data_ptr(), ends=ctypes.addressof(self._ends), wanted=wanted.data_ptr(),
            num_wanted=num_wanted, logits=logits.data_ptr(),
        )  # fmt: skip
        return logits


def _embedding_table(embedding: Any, num_tokens: int) -> tuple[torch.Tensor | None, int, float]:
    """The table of an embedding that does nothing but look up and scale, bits of a number (0 if quantised), and the scale.

    None if it does more, or has fewer rows than there are tokens.
    """
    if type(embedding) is QuantEmbedding and embedding.packed.out_features >= num_tokens:
        return embedding.packed.table, 0, embedding.scale
    if type(embedding) is nn.Embedding and embedding.max_norm is None and embedding.num_embeddings >= num_tokens:
        weight = embedding.weight.data
        if weight.is_contiguous() and weight.dtype in (torch.float32, torch.bfloat16):
            return weight, 8 * weight.dtype.itemsize, 1.0
    return None, 0, 1.0
