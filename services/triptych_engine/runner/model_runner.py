"""Runs the scheduler's steps on the device: lays out the batch, runs the model, samples."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from triptych_engine.media.item import Bidirectional, MediaTraits
from triptych_engine.runner.attention.paged import AttentionBackend
from triptych_engine.runner.block_copies import HostBlocks, bytes_of_block, layout_of
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.constraint_cache import constraint_cache
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cuda.graphed_decode import CudaRecorder, GraphedDecode, Recorder, record_decode
from triptych_engine.runner.fusion.adapters import adapting
from triptych_engine.runner.input_batch import InputBatch, StepInputs
from triptych_engine.runner.launched_step import LaunchedStep, ModelOutput
from triptych_engine.runner.lora.step import LoraRows
from triptych_engine.runner.lora.store import LoraStore
from triptych_engine.runner.media_inputs import MediaInputs, PlacedSlice
from triptych_engine.runner.memory import CacheSize
from triptych_engine.runner.model.loader import LoadedModel
from triptych_engine.runner.pooling.pooler import Pooler
from triptych_engine.runner.sampling.prompt_logprobs import PromptLogprobs
from triptych_engine.runner.state_rows import CrossRows, StateRows
from triptych_engine.runner.step_sampler import StepSampler
from triptych_engine.runner.transfer import HostToDevice, check_device, end_of_work
from triptych_engine.runner.warm_up import WarmUp
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput, StepResult
from triptych_engine.scheduling.request import SamplingParams
from triptych_engine.scheduling.step_costs import StepCosts

_PROBE_ID = "probe"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """The parts from which a runner is built."""

    config: RunnerConfig
    model: LoadedModel
    backend: AttentionBackend
    #: CPU kernels; None if the device is not a CPU or they are not available.
    kernels: CpuKernels | None
    cache_dtype: torch.dtype
    size: CacheSize
    media: MediaInputs | None
    #: Traits of a model that takes media; for other models the reason why media are refused.
    media_traits: MediaTraits | str
    #: Records decode steps; by default a recorder of CUDA graphs on a GPU.
    recorder: Recorder | None
    #: Pools the hidden states of all requests; None if the model generates text.
    pooler: Pooler | None = None
    #: Of the ranks' measurements, the one that all go by. Called by all.
    agree: Callable[[float], float] = lambda number: number


class ModelRunner:
    """The model, its KV cache and the state of the sequences that it computes. Built by `build_runner`. Not thread-safe."""

    def __init__(self, parts: RunnerParts) -> None:
        self.config = config = parts.config
        self.size, self.num_blocks = parts.size, parts.size.num_blocks
        self.media_traits = parts.media_traits
        self._model, self._backend, self._media = parts.model, parts.backend, parts.media
        self._cache_dtype, self._recorder, self._agree = parts.cache_dtype, parts.recorder, parts.agree
        self._graphs: GraphedDecode | None = None
        self._host_blocks: HostBlocks | None = None
        self._is_warm = False
        self._errors: dict[str, str] = {}  # request_id -> why it cannot be computed; of the current step
        traits = parts.media_traits
        # No sequence is longer than the KV cache, which is much less than the context of some models.
        capacity = self.num_blocks * config.block_size or config.max_model_len
        self._batch = InputBatch(
            config.max_num_seqs,
            min(config.max_model_len, capacity),
            config.block_size,
            self.size.num_window_blocks,
            spans_in_windows=isinstance(traits, MediaTraits) and traits.bidirectional is Bidirectional.VISION_IN_WINDOWS,
        )
        self._transfer = HostToDevice(config.device)
        self.constraints = constraint_cache(config.model_path, self._model.vocab_size)
        self._sampler = StepSampler(
            config.max_num_seqs, config.device, self._batch, parts.kernels, self.constraints, config.num_threads
        )
        self._prompt_logprobs = PromptLogprobs(config.max_num_seqs, self._batch, self._transfer)
        #: Adapters that sequences can have; None if none are allowed.
        self.loras: LoraStore | None = None
        self._lora_rows = LoraRows(config.device, batch_invariant=config.batch_invariant)
        self._states = StateRows(self._model.recurrent, self.size.num_states, config.max_num_seqs, config.device)
        self._cross = CrossRows(
            self._model.cross, self.size.num_cross_slots, config.max_num_seqs, config.block_size, parts.cache_dtype
        )

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def embedding_bytes(self) -> int:
        """Bytes of one embedding of a media item, including its deepstack additions to early layers."""
        traits = self.media_traits
        size = traits.hidden_size * (1 + traits.num_deepstack) if isinstance(traits, MediaTraits) else 1
        return size * self._model.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Size of a block of the KV cache."""
        return bytes_of_block(self._backend.blocks())

    @property
    def window(self) -> int:
        """Longest window of a layer, in tokens; 0 if there is none."""
        return max(shape.window for shape in self._model.layers.values())

    @property
    def kv_layout(self) -> str:
        """What the bytes of a block mean."""
        return layout_of(self._backend.name, self._backend.blocks())

    @property
    def _offloaded(self) -> HostBlocks:
        """Where blocks outside of the KV cache are. Raises RuntimeError while there is no cache."""
        if self._host_blocks is None:
            raise RuntimeError("blocks are to be copied, but the KV cache or the host's memory for them is not there")
        return self._host_blocks

    def allocate_cache(self) -> None:
        """Allocate the memory of the KV cache."""
        parts = self._model.layers, self.num_blocks, self.config.block_size, self._cache_dtype
        if self.size.num_window_blocks:
            cast(CpuAttention, self._backend).allocate(*parts, self.size.num_window_blocks)
        else:
            self._backend.allocate(*parts)
        self._states.allocate()
        self._cross.allocate()
        if (memory := self.config.host_memory) is not None:
            self._host_blocks = HostBlocks(memory, self.config.place, self._backend.blocks())
        if self._graphs is not None:
            self._graphs.record()
        if self._is_warm:
            self._prefault_cache()

    def free_cache(self) -> None:
        """Free the memory of the KV cache. No sequence may be running."""
        if self._graphs is not None:
            self._graphs.forget()
        if self._host_blocks is not None:
            self._host_blocks.stop_prefault()
        self._host_blocks = None
        self._backend.free()
        self._states.free()
        self._cross.free()

    # -- one step -------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, scheduled: SchedulerOutput) -> ModelOutput:
        """Launch the forward pass of the scheduled tokens.

        Does not wait for the device, which may still compute earlier steps. Tokens that those steps sample are passed on to this
        step on the device.
        """
        self._set_threads(scheduled.awaits_embeddings)
        self._update_states(scheduled)
        if scheduled.stores:
            self._offloaded.store(scheduled.stores)
        if scheduled.loads:
            self._offloaded.load(scheduled.loads)
        if not scheduled.num_scheduled_tokens:
            return ModelOutput()
        inputs = self._batch.gather(scheduled, self._lora_rows.order)
        prompt_lines = self._prompt_logprobs.owners(inputs)
        wanted = inputs.last_tokens if prompt_lines is None else prompt_lines[0]
        num_wanted, draft_logits = len(wanted), None
        if scheduled.draft_token_ids:
            wanted = np.concatenate([wanted, inputs.draft_tokens])
        logits = self._forward(inputs, wanted, self._place(inputs, scheduled) if scheduled.embeddings else [])
        if scheduled.draft_token_ids:
            logits, draft_logits = logits[:num_wanted], logits[num_wanted:]
        self._batch.advance(inputs)
        for copies in scheduled.offers.values():
            self._offloaded.store(copies)
        wait = end_of_work(self.config.device)
        return ModelOutput(inputs, logits, draft_logits, prompt_lines, errors=self._errors, wait=wait)

    @torch.inference_mode()
    def sample(self, output: ModelOutput) -> LaunchedStep:
        """Launch the sampling for sequences whose last token is in the step. Does not wait for the device."""
        inputs, logits = output.inputs, output.logits
        if inputs is None or logits is None:
            return LaunchedStep(output.errors, pooled=output.pooled, wait=output.wait)
        step = LaunchedStep(output.errors, wait=output.wait)
        if output.prompt_lines is not None:
            wanted, owners = output.prompt_lines
            step.prompt_logprobs = self._prompt_logprobs.launch(inputs, logits, wanted, owners)
            (lines,) = self._transfer(np.flatnonzero(np.isin(wanted, inputs.last_tokens)))
            logits = logits[lines]
        if len(logits):
            self._sampler.launch(step, inputs, logits, output.draft_logits)
        return step

    def execute(self, scheduled: SchedulerOutput) -> StepResult:
        """Compute a step and wait for it."""
        return self.sample(self.forward(scheduled)).result()

    def check_device(self) -> None:
        """Raise RuntimeError if the device can no longer compute."""
        check_device(self.config.device)

    def _set_threads(self, encoding: bool) -> None:
        """Leave the encoder its cores while it has work. Each of a step's hundreds of parallel regions ends in a barrier: if a
        thread shared a core with the encoder, all threads would wait for it."""
        wanted = self.config.num_threads_while_encoding if encoding else self.config.num_threads
        if wanted is not None and wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)

    def _update_states(self, scheduled: SchedulerOutput) -> None:
        self._errors = {}
        for request_id in scheduled.dropped:
            row = self._batch.remove(request_id)
            if row is not None:
                self._sampler.remove(row)
                self._lora_rows.remove(row)
        for sequence in scheduled.new:
            row = self._batch.add(sequence, self._axis_positions(sequence))
            self._sampler.add(row, sequence)
            self._prompt_logprobs.add(row, sequence.sampling)
            self._states.add(row, sequence)
            self._cross.add(row, sequence)
            if sequence.lora_digest:
                self._add_lora(row, sequence)
        for request_id, block_ids in scheduled.new_block_ids.items():
            self._batch.add_blocks(self._batch.row(request_id), block_ids)
        for request_id, block_ids in scheduled.new_window_block_ids.items():
            self._batch.add_window_blocks(self._batch.row(request_id), block_ids)

    def _add_lora(self, row: int, sequence: NewSequence) -> None:
        adapter = None if self.loras is None else self.loras.loaded(sequence.lora_digest)
        if adapter is None:
            self._errors[sequence.request_id] = "the adapter of the request is no longer loaded"
        else:
            self._lora_rows.add(row, adapter)

    def _axis_positions(self, sequence: NewSequence) -> np.ndarray | None:
        if self._media is None:
            return None
        try:
            return self._media.positions(sequence)
        except ValueError as error:
            self._errors[sequence.request_id] = f"the positions of the request cannot be computed: {error}"
            return None

    @staticmethod
    def _place(inputs: StepInputs, scheduled: SchedulerOutput) -> list[PlacedSlice]:
        """The step's embeddings, each with its start index in the flat batch."""
        first_tokens = dict(zip(inputs.request_ids, inputs.metadata.query_start_loc.tolist(), strict=False))
        placed = []
        for request_id, slices in scheduled.embeddings.items():
            first = first_tokens[request_id]
            offset = first - int(inputs.positions[first])
            placed += [(offset + one.position, one) for one in slices]
        return placed

    def _forward(
        self, inputs: StepInputs, wanted: np.ndarray, slices: list[PlacedSlice], *, as_embeddings: bool = False
    ) -> torch.Tensor:
        """Logits of the wanted tokens. as_embeddings: pass embeddings to the model even if no media are among the tokens."""
        as_embeddings = as_embeddings or bool(slices)
        lora = self._lora_rows.step(inputs)
        is_plain = lora is None and not as_embeddings and len(wanted) == len(inputs.rows)
        if self._graphs is not None and is_plain and self._graphs.takes(inputs):
            return self._graphs.run(inputs)
        self._backend.begin(inputs.metadata)
        positions = inputs.positions if inputs.axis_positions is None else inputs.axis_positions
        arrays = [inputs.token_ids, positions, wanted.astype(np.int64)]
        if inputs.token_sources is not None:
            arrays.append(inputs.token_sources)
        token_ids, position_ids, logits_indices, *sources = self._transfer(*arrays)
        for source in sources:
            token_ids = torch.where(source >= 0, self._sampler.newest_tokens[source.clamp(min=0)], token_ids)
        arguments = (position_ids, logits_indices, self._backend)
        if self._media is None or not as_embeddings:
            with self._states.computing(inputs), self._cross.computing(inputs), adapting(lora):
                return self._model.forward(token_ids, *arguments)
        with self._media.adding(slices), self._states.computing(inputs), adapting(lora):
            return self._model.forward(
                token_ids, *arguments, self._media.embed(token_ids, slices), self._media.per_layer(token_ids)
            )

    # -- start -------------------------------------------------------------------------------------------------------------

    def prompt_logits(self, token_ids: list[int], *, num_chunks: int = 1, as_embeddings: bool = False) -> torch.Tensor:
        """[num_tokens, vocab_size] of a prompt on the paged path. Overwrites the first blocks of the KV cache; none may be in use.

        Args:
            num_chunks: number of steps in which the prompt is computed.
            as_embeddings: pass the tokens' embeddings to the model, as for media items.
        """
        blocks = list(range(-(-len(token_ids) // self.config.block_size)))
        prompt = NewSequence(_PROBE_ID, token_ids, len(token_ids), 0, blocks, SamplingParams(max_tokens=1, temperature=0.0))
        pieces = []
        self._update_states(SchedulerOutput(new=[prompt]))
        try:
            for chunk in np.array_split(np.arange(len(token_ids)), num_chunks):
                inputs = self._batch.gather(SchedulerOutput(num_scheduled_tokens={_PROBE_ID: len(chunk)}))
                with torch.inference_mode():
                    pieces.append(self._forward(inputs, np.arange(len(chunk)), [], as_embeddings=as_embeddings))
                self._batch.advance(inputs)
        finally:
            self._update_states(SchedulerOutput(dropped=[_PROBE_ID]))
        return torch.cat(pieces)

    def warm_up(self) -> StepCosts:
        """Prepare for the first requests, and measure the cost of steps.

        On an accelerator, the largest possible prefill runs first, to check that the memory suffices.
        """
        config = self.config
        self._graphs = self._record_decode()
        max_tokens = min(config.max_num_batched_tokens, config.max_model_len - 1, self.num_blocks * config.block_size - 1)
        max_num_seqs = min(config.max_num_seqs, self.num_blocks)
        costs = WarmUp(self, config.block_size, max_tokens, max_num_seqs, agree=self._agree).run(
            largest=config.device.type != "cpu"
        )
        self._is_warm = True
        self._prefault_cache()  # not earlier: it would slow down the measured steps
        return costs

    def prepare(self) -> None:
        """The same without measuring, for a model that was here before."""
        self._graphs = self._record_decode()
        self._is_warm = True
        self._prefault_cache()

    def _prefault_cache(self) -> None:
        if self.config.prefault_kv_cache:
            self._backend.prefault()
            if self._host_blocks is not None:
                self._host_blocks.prefault()

    def _record_decode(self) -> GraphedDecode | None:
        config = self.config
        recorder = self._recorder or (CudaRecorder() if config.device.type == "cuda" else None)
        if not config.cuda_graphs or recorder is None:
            return None
        if any(shape.chunk for shape in self._model.layers.values()):
            log.warning("chunked attention: decode steps are not recorded as CUDA graphs, and take longer")
            return None
        if self._model.recurrent is not None or self._model.cross is not None:
            return None
        return record_decode(
            self._model,
            self._backend,
            self._sampler.newest_tokens,
            recorder,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
        )
