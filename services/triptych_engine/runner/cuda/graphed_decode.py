"""Decode steps that are recorded once and replayed: one call instead of hundreds of kernel launches.

A recording has fixed shapes and addresses. So there is one recording for each of a few batch sizes, with its own input buffers. A
step uses the smallest one that is large enough. Its other rows are padding: they compute a token in the cache's scratch block.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from triptych_engine.runner.attention.paged import AttentionBackend
from triptych_engine.runner.cuda.step import DecodeTokens, StepTensors
from triptych_engine.runner.input_batch import StepInputs
from triptych_engine.runner.model.loader import LoadedModel
from triptych_engine.runner.transfer import StaticArrays

log = logging.getLogger(__name__)
#: Larger steps compute long enough to hide their kernel launches.
_MAX_BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded computation. A replay computes it on the current content of its inputs."""

    output: torch.Tensor
    replay: Callable[[], None]


class Recorder(Protocol):
    """Records what a function computes on the device."""

    def record(self, function: Callable[[], torch.Tensor]) -> Recording:
        """Record a function. The recording has the addresses of the tensors that it reads, but does not keep them alive."""
        ...


@runtime_checkable
class RecordableAttention(AttentionBackend, Protocol):
    """An attention backend that computes steps whose metadata is on the device."""

    @property
    def scratch_slot(self) -> int: ...

    def begin_on(self, step: StepTensors) -> None: ...


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded step of one batch size."""

    inputs: StaticArrays
    #: The function that was recorded. Besides the inputs, it owns the tensors that the recording reads.
    step: Callable[[], torch.Tensor]
    recording: Recording


class CudaRecorder:
    """Records CUDA graphs, which share the memory of their intermediate results."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], torch.Tensor]) -> Recording:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()  # libraries initialise themselves in the first run, which a capture does not allow
            with _waiting_is_an_error():
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # A failed capture leaves its own stream current; the outer context restores ours.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=self._pool):
            output = function()
        return Recording(output, graph.replay)


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Within this context, code that waits for the device raises RuntimeError, as it would in a capture. A capture must not fail:
    torch's allocator considers a failed capture as still in progress, and then frees no memory when memory runs short."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to record, ascending. The last one is max_num_seqs, but at most _MAX_BATCH_SIZE."""
    largest = min(max_num_seqs, _MAX_BATCH_SIZE)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, _MAX_BATCH_SIZE + 1, 16)]
    return [*(size for size in sizes if size < largest), largest]


class GraphedDecode:
    """Replays steps in which every sequence computes one token.

    Args:
        backend: its cache must be allocated.
        newest_tokens: [rows] int64, the token that was sampled last in each row of the batch.
    """

    def __init__(
        self,
        model: LoadedModel,
        backend: RecordableAttention,
        newest_tokens: torch.Tensor,
        recorder: Recorder,
        *,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self._model, self._backend, self._newest_tokens, self._recorder = model, backend, newest_tokens, recorder
        self._max_model_len, self._block_size = max_model_len, block_size
        self._max_blocks = -(-max_model_len // block_size)
        self._sizes = batch_sizes(max_num_seqs)
        self._recorded: dict[int, _Recorded] = {}  # by batch size
        self.num_replays = 0

    @torch.inference_mode()
    def record(self) -> None:
        """Record all sizes. Must be called again after the cache was reallocated. No step may be in flight."""
        self.forget()
        for size in reversed(self._sizes):  # the smaller ones reuse the memory of the largest
            inputs = StaticArrays(self._model.device, self._arrays(None, size))
            step = self._step(inputs.tensors, size)
            self._recorded[size] = _Recorded(inputs, step, self._recorder.record(step))

    def forget(self) -> None:
        """Drop the recordings, which contain addresses of the cache."""
        self._recorded = {}

    def takes(self, inputs: StepInputs) -> bool:
        """Whether a step can be replayed: every sequence computes one token and samples the next, without spans (`key_end`)."""
        num_seqs = len(inputs.rows)
        return (
            bool(self._recorded)
            and num_seqs <= self._sizes[-1]
            and len(inputs.token_ids) == num_seqs
            and inputs.metadata.key_end is None
            and bool(inputs.samples.all())
        )

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """Replay a step. Returns logits [num_seqs, vocab_size], which the next replay overwrites."""
        num_seqs = len(inputs.rows)
        size = self._sizes[bisect_left(self._sizes, num_seqs)]
        recorded = self._recorded[size]
        recorded.inputs.fill(self._arrays(inputs, size))
        recorded.recording.replay()
        self.num_replays += 1
        return recorded.recording.output[:num_seqs]

    def _arrays(self, inputs: StepInputs | None, size: int) -> list[np.ndarray]:
        """A step's arrays, padded to `size` rows. Without inputs, all rows are padding, and as long as they can get."""
        axes = self._model.num_position_axes
        token_ids, positions = np.zeros(size, np.int64), np.zeros((axes, size) if axes else size, np.int64)
        sources = np.full(size, -1, np.int64)
        slots = np.full(size, self._backend.scratch_slot, np.int64)
        seq_lens = np.ones(size, np.int32)
        num_blocks = self._max_blocks if inputs is None else inputs.metadata.block_table.shape[1]
        block_table = np.full((size, num_blocks), self._backend.scratch_slot // self._block_size, np.int32)
        if inputs is not None:
            num_seqs, metadata = len(inputs.rows), inputs.metadata
            token_ids[:num_seqs] = inputs.token_ids
            positions[..., :num_seqs] = inputs.positions if inputs.axis_positions is None else inputs.axis_positions
            if inputs.token_sources is not None:
                sources[:num_seqs] = inputs.token_sources
            slots[:num_seqs], seq_lens[:num_seqs] = metadata.slots, metadata.seq_lens
            block_table[:num_seqs] = metadata.block_table
        return [token_ids, positions, sources, slots, seq_lens, np.array([num_blocks], np.int32), block_table]

    def _step(self, tensors: list[torch.Tensor], size: int) -> Callable[[], torch.Tensor]:
        token_ids, positions, sources, slots, seq_lens, blocks_per_row, block_table = tensors
        every_row = torch.arange(size, device=token_ids.device)
        rows = every_row.int()
        step = StepTensors(slots, seq_lens, block_table, blocks_per_row, DecodeTokens(rows, rows, self._max_model_len))

        def compute() -> torch.Tensor:
            self._backend.begin_on(step)
            known = torch.where(sources >= 0, self._newest_tokens[sources.clamp(min=0)], token_ids)
            return self._model.forward(known, positions, every_row, self._backend)

        return compute


def record_decode(
    model: LoadedModel,
    backend: AttentionBackend,
    newest_tokens: torch.Tensor,
    recorder: Recorder,
    *,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
) -> GraphedDecode | None:
    """Record a model's decode steps. Returns None, and logs the reason, if this is not possible. Arguments as for GraphedDecode."""
    if not isinstance(backend, RecordableAttention):
        log.info("decode steps are not recorded: %s attention needs their metadata on the host", backend.name)
        return None
    graphs = GraphedDecode(
        model,
        backend,
        newest_tokens,
        recorder,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
    )
    started = time.monotonic()
    try:
        graphs.record()
    # The code of some model families waits for the device.
    except RuntimeError as error:
        log.warning("decode steps are not recorded, each of their kernels is launched by itself: %s", str(error).splitlines()[0])
        return None
    log.info("recorded decode steps in %.1f s", time.monotonic() - started)
    return graphs
