"""Runs the scheduler's steps on the device: lays out the batch, runs the model, samples."""

from __future__ import annotations

import gc
import logging
import time

import numpy as np
import torch
from triptych_common.rpc.errors import StartupError

from triptych_engine.media.item import MediaTraits
from triptych_engine.runner.attention.backends import choose_backend
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.optimize import optimize, quantize
from triptych_engine.runner.cuda.graphed_decode import CudaRecorder, GraphedDecode, Recorder, record_decode
from triptych_engine.runner.input_batch import InputBatch, StepInputs
from triptych_engine.runner.launched_step import LaunchedStep, StepSample
from triptych_engine.runner.media_inputs import MediaInputs, PlacedSlice
from triptych_engine.runner.model.loader import NUM_PROBE_TOKENS, LoadedModel, check_parity, load_model
from triptych_engine.runner.model.media_traits import media_traits
from triptych_engine.runner.model.precision import check_int8, kv_cache_dtype
from triptych_engine.runner.sampling.prompt_logprobs import PromptLogprobs
from triptych_engine.runner.sampling.sampler import Sampler
from triptych_engine.runner.transfer import HostToDevice, check_device, end_of_work, use_device
from triptych_engine.runner.warm_up import WarmUp
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput, StepResult
from triptych_engine.scheduling.pacer import StepCosts
from triptych_engine.scheduling.request import SamplingParams

log = logging.getLogger(__name__)
_PROBE_ID = "probe"


class ModelRunner:
    """The model, its KV cache and the state of the sequences that it computes. Used by one thread."""

    def __init__(self, config: RunnerConfig, recorder: Recorder | None = None) -> None:
        """recorder: records decode steps; by default one for CUDA graphs, where there are any."""
        self.config = config
        self.num_blocks = 0
        self._recorder = recorder
        self._graphs: GraphedDecode | None = None
        self._is_warm = False

    def load(self) -> None:
        """Read the weights, take the KV cache and check the model against transformers.

        Raises:
            StartupError: the KV cache is too small, or the model cannot be had.
            UnsupportedModelError: it cannot be run correctly.
        """
        config, started = self.config, time.monotonic()
        use_device(config.device)
        kernels = load_kernels() if config.device.type == "cpu" and config.attention != "torch" else None
        int8 = config.quantization == "int8"
        if int8:
            check_int8(config.device, config.dtype, kernels is not None)
        self._model: LoadedModel = load_model(
            config.model_path, config.model_name, dtype=config.dtype, device=config.device, max_model_len=config.max_model_len
        )
        probe = self._model.probe_token_ids
        spread = torch.linspace(0, config.max_model_len - 1, len(probe), dtype=torch.float64).long()
        trial = probe, self._model.position_ids(spread)
        optimize(self._model.model, kernels, *trial, int8=int8)
        gc.collect()
        self.media_traits = media_traits(self._model.model, self._model.config, self._model.num_position_axes)
        self._media = None
        if isinstance(self.media_traits, MediaTraits):
            self._media = MediaInputs(self._model.model, self._model.num_position_axes)
        self._errors: dict[str, str] = {}  # request_id -> why it cannot be computed; found in the step in hand
        model, shapes = self._model, self._model.layers
        self._cache_dtype = kv_cache_dtype(
            config.kv_cache_dtype, model.checkpoint_dtype, model.dtype, is_own_choice=config.dtype is None
        )
        self._backend = choose_backend(
            config.attention, config.device, shapes, config.block_size, model.dtype, kernels, cache_dtype=self._cache_dtype
        )
        self._batch = InputBatch(config.max_num_seqs, config.max_model_len, config.block_size)
        self._transfer = HostToDevice(config.device)
        self._newest_tokens = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=config.device)  # [rows], sampled last
        self._sampler = Sampler(config.max_num_seqs, self._model.vocab_size, config.device, kernels)
        self._prompt_logprobs = PromptLogprobs(self._batch, self._sampler, self._transfer)
        block_bytes = config.block_size * sum(shape.bytes_per_token(self._cache_dtype) for shape in shapes.values())
        self.num_blocks = config.kv_cache_bytes // block_bytes
        min_blocks = -(-NUM_PROBE_TOKENS // config.block_size)
        if self.num_blocks < min_blocks:
            raise StartupError(
                f"a KV cache of {config.kv_cache_bytes} bytes holds {self.num_blocks} blocks of {block_bytes} bytes; "
                f"at least {min_blocks} are needed (--kv-cache-memory)"
            )
        self._check_against_reference(min_blocks)
        if int8:
            self._quantize(*trial)
        del self._model.probe_logits
        log.info("%s loaded in %.1f s: %d KV blocks of %d tokens in %s, %s attention", config.model_name,
                 time.monotonic() - started, self.num_blocks, config.block_size, str(self._cache_dtype).removeprefix("torch."),
                 self._backend.name)  # fmt: skip

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def embedding_bytes(self) -> int:
        """What one embedding of a media item takes, with its additions to early layers."""
        traits = self.media_traits
        size = traits.hidden_size * (1 + traits.num_deepstack) if isinstance(traits, MediaTraits) else 1
        return size * self._model.dtype.itemsize

    def allocate_cache(self) -> None:
        """Take the memory of the KV cache."""
        self._backend.allocate(self._model.layers, self.num_blocks, self.config.block_size, self._cache_dtype)
        if self._graphs is not None:
            self._graphs.record()
        if self._is_warm:
            self._prefault_cache()

    def free_cache(self) -> None:
        """Give the memory of the KV cache back. No sequence may be running."""
        if self._graphs is not None:
            self._graphs.forget()
        self._backend.free()

    # -- one step -------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, scheduled: SchedulerOutput) -> LaunchedStep:
        """Have the device compute the scheduled tokens, and sample where a sequence's last token is among them.

        Does not wait for the device, which may still be at the steps before. Tokens that those sample go from step to step on the
        device.
        """
        self._set_threads(scheduled.awaits_embeddings)
        self._update_states(scheduled)
        if not scheduled.num_scheduled_tokens:
            return LaunchedStep()
        inputs = self._batch.gather(scheduled)
        of_prompts = self._prompt_logprobs.owners(inputs)
        wanted = inputs.last_tokens if of_prompts is None else of_prompts[0]
        logits = self._forward(inputs, wanted, self._place(inputs, scheduled) if scheduled.embeddings else [])
        self._batch.advance(inputs)
        step = LaunchedStep(self._errors, wait=end_of_work(self.config.device))
        if of_prompts is not None:
            step.prompt_logprobs = self._prompt_logprobs.launch(inputs, logits, *of_prompts)
            (lines,) = self._transfer(np.flatnonzero(np.isin(wanted, inputs.last_tokens)))
            logits = logits[lines]
        if len(logits):
            step.sample = self._sample(inputs, logits)
        return step

    def execute(self, scheduled: SchedulerOutput) -> StepResult:
        """Launch a step and wait for it."""
        return self.launch(scheduled).result()

    def check_device(self) -> None:
        """Raise RuntimeError when the device computes nothing any more."""
        check_device(self.config.device)

    def _set_threads(self, encoding: bool) -> None:
        """Leave the encoder its cores while it has work. Threads that share a core with it would be waited for by the others, at
        the end of each of a step's hundreds of parallel regions."""
        wanted = self.config.num_threads_while_encoding if encoding else self.config.num_threads
        if wanted is not None and wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)

    def _update_states(self, scheduled: SchedulerOutput) -> None:
        self._errors = {}
        for request_id in scheduled.dropped:
            row = self._batch.remove(request_id)
            if row is not None:
                self._sampler.remove(row)
        for sequence in scheduled.new:
            row = self._batch.add(sequence, self._axis_positions(sequence))
            self._sampler.add(row, sequence.sampling, sequence.token_ids, sequence.num_prompt_tokens)
        for request_id, block_ids in scheduled.new_block_ids.items():
            self._batch.add_blocks(self._batch.row(request_id), block_ids)

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
        """The step's embeddings, each with the index in the flat batch where it begins."""
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
        """Logits of the wanted tokens. as_embeddings: the model gets embeddings even where no media are among the tokens."""
        as_embeddings = as_embeddings or bool(slices)
        if self._graphs is not None and not as_embeddings and len(wanted) == len(inputs.rows) and self._graphs.takes(inputs):
            return self._graphs.run(inputs)
        self._backend.begin(inputs.metadata)
        positions = inputs.positions if inputs.axis_positions is None else inputs.axis_positions
        arrays = [inputs.token_ids, positions, wanted.astype(np.int64)]
        if inputs.token_sources is not None:
            arrays.append(inputs.token_sources)
        token_ids, position_ids, logits_indices, *sources = self._transfer(*arrays)
        for source in sources:
            token_ids = torch.where(source >= 0, self._newest_tokens[source.clamp(min=0)], token_ids)
        arguments = (position_ids, logits_indices, self._backend)
        if self._media is None or not as_embeddings:
            return self._model.forward(token_ids, *arguments)
        with self._media.adding(slices):
            return self._model.forward(token_ids, *arguments, inputs_embeds=self._media.embed(token_ids, slices))

    def _sample(self, inputs: StepInputs, logits: torch.Tensor) -> StepSample:
        indices = np.flatnonzero(inputs.samples)
        rows = inputs.rows[indices]
        pending = self._sampler.launch(logits, rows)
        (on_device,) = self._transfer(rows)
        self._newest_tokens.index_copy_(0, on_device, pending.token_ids)
        request_ids = [inputs.request_ids[index] for index in indices.tolist()]
        return StepSample(request_ids, pending, self._batch, self._batch.expect_tokens(rows))

    # -- start-up -------------------------------------------------------------------------------------------------------------

    def prompt_logits(self, token_ids: list[int], *, num_chunks: int = 1, as_embeddings: bool = False) -> torch.Tensor:
        """[num_tokens, vocab_size] of a prompt on the paged path. Overwrites the first blocks of the KV cache; none may be in use.

        Args:
            num_chunks: steps that the prompt is spread over.
            as_embeddings: the model gets the tokens' embeddings, as those of media items.
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

    def _check_against_reference(self, num_probe_blocks: int) -> None:
        """Compare the paged path with transformers' ordinary forward pass, and allocate the cache; take no media where the model
        computes something else from embeddings than from the tokens that they are of."""
        model, name, probe = self._model, self.config.model_name, self._model.probe_token_ids.tolist()
        exact = torch.promote_types(model.dtype, self._cache_dtype)
        if self._cache_dtype != exact:  # rounding would hide small errors
            self._backend.allocate(model.layers, num_probe_blocks, self.config.block_size, exact)
            check_parity(model, self.prompt_logits(probe, num_chunks=2), name)
        self.allocate_cache()
        check_parity(model, self.prompt_logits(probe, num_chunks=2), name, cache_dtype=self._cache_dtype)
        if self._media is None:
            return
        try:
            check_parity(model, self.prompt_logits(probe, as_embeddings=True), name, cache_dtype=self._cache_dtype)
        # The families' own code, which may insist on token ids.
        except Exception as error:
            model_type = model.config.model_type
            self._media, self.media_traits = None, f"{model_type} does not run on embeddings alone; media items cannot be taken"
            log.warning("media are refused: %s (%s)", self.media_traits, error)

    def _quantize(self, token_ids: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Quantise what has proven to be right, and see how far that moves it."""
        done = quantize(self._model.model, token_ids, position_ids)
        if not done.num_layers:
            raise StartupError(f"--quantization int8 finds no layer that it takes in {self._model.dtype} on this CPU (--dtype)")
        gc.collect()
        log.info("quantised %d linear layers to int8: %.0f MB in place of %.0f", done.num_layers, done.bytes_after / 1e6,
                 done.bytes_before / 1e6)  # fmt: skip
        check_parity(self._model, self.prompt_logits(token_ids.tolist(), num_chunks=2), self.config.model_name, quantized=True)

    def warm_up(self) -> StepCosts:
        """Ready everything for the first requests, and measure what steps cost.

        On an accelerator that begins with the largest prefill that there can be: whether its memory suffices is known then.
        """
        config = self.config
        self._graphs = self._record_decode()
        max_tokens = min(config.max_num_batched_tokens, config.max_model_len - 1, self.num_blocks * config.block_size - 1)
        max_num_seqs = min(config.max_num_seqs, self.num_blocks)
        costs = WarmUp(self, config.block_size, max_tokens, max_num_seqs).run(largest=config.device.type != "cpu")
        self._is_warm = True
        self._prefault_cache()  # not before: it would be measured with the steps
        return costs

    def _prefault_cache(self) -> None:
        if self.config.prefault_kv_cache:
            self._backend.prefault()

    def _record_decode(self) -> GraphedDecode | None:
        config = self.config
        recorder = self._recorder or (CudaRecorder() if config.device.type == "cuda" else None)
        if not config.cuda_graphs or recorder is None:
            return None
        return record_decode(
            self._model,
            self._backend,
            self._newest_tokens,
            recorder,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
        )
