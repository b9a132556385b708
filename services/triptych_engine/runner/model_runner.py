"""Runs the scheduler's steps on the device: lays out the batch, runs the model, samples."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from triptych_common.errors import StartupError

from triptych_engine.media import MediaTraits
from triptych_engine.output import NewSequence, SchedulerOutput, StepResult
from triptych_engine.request import SamplingParams, TokenLogprobs
from triptych_engine.runner.backends import choose_backend
from triptych_engine.runner.cpu_kernels import load_kernels
from triptych_engine.runner.input_batch import InputBatch, StepInputs
from triptych_engine.runner.media_inputs import MediaInputs, PlacedSlice
from triptych_engine.runner.media_traits import media_traits
from triptych_engine.runner.model_loader import NUM_PROBE_TOKENS, LoadedModel, check_parity, load_model
from triptych_engine.runner.optimize import optimize
from triptych_engine.runner.sampler import Sampler, gather_logprobs
from triptych_engine.step_pacer import StepCosts

log = logging.getLogger(__name__)
_PROBE_ID = "probe"
_CPU = torch.device("cpu")
#: Tokens, or sequences, of the steps whose time is taken.
_MEASURED_SIZE = 64
_WARM_UP_SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What the runner needs to know."""

    model_path: Path
    model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_bytes: int
    dtype: torch.dtype | None = None
    device: torch.device = _CPU
    attention: str = "auto"  # auto, cpu, cuda, torch
    #: Compute threads, and those of steps during which media are encoded, perhaps on the same cores. None: as they are.
    num_threads: int | None = None
    num_threads_while_encoding: int | None = None


class ModelRunner:
    """The model, its KV cache and the state of the sequences that it computes. Used by one thread."""

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.num_blocks = 0

    def load(self) -> None:
        """Read the weights, take the KV cache and check the model against transformers.

        Raises:
            StartupError: the KV cache is too small, or the model cannot be had.
            UnsupportedModelError: it cannot be run correctly.
        """
        config, started = self.config, time.monotonic()
        self._model: LoadedModel = load_model(
            config.model_path, config.model_name, dtype=config.dtype, device=config.device, max_model_len=config.max_model_len
        )
        kernels = load_kernels() if config.device.type == "cpu" and config.attention != "torch" else None
        probe = self._model.probe_token_ids
        spread = torch.linspace(0, config.max_model_len - 1, len(probe), dtype=torch.float64).long()
        optimize(self._model.model, kernels, probe, self._model.position_ids(spread))
        gc.collect()
        self.media_traits = media_traits(self._model.model, self._model.config, self._model.num_position_axes)
        self._media = None
        if isinstance(self.media_traits, MediaTraits):
            self._media = MediaInputs(self._model.model, self.media_traits, self._model.num_position_axes)
        self._errors: dict[str, str] = {}  # request_id -> why it cannot be computed; found in the step in hand
        shapes = self._model.layers
        self._backend = choose_backend(config.attention, config.device, shapes, config.block_size, self._model.dtype, kernels)
        self._batch = InputBatch(config.max_num_seqs, config.max_model_len, config.block_size)
        self._sampler = Sampler(config.max_num_seqs, self._model.vocab_size, config.device, kernels)
        block_bytes = config.block_size * sum(shape.bytes_per_token(self._model.dtype) for shape in self._model.layers.values())
        self.num_blocks = config.kv_cache_bytes // block_bytes
        min_blocks = -(-NUM_PROBE_TOKENS // config.block_size)
        if self.num_blocks < min_blocks:
            raise StartupError(
                f"a KV cache of {config.kv_cache_bytes} bytes holds {self.num_blocks} blocks of {block_bytes} bytes; "
                f"at least {min_blocks} are needed (--kv-cache-memory)"
            )
        self.allocate_cache()
        self._check_against_reference()
        log.info("%s loaded in %.1f s: %d KV blocks of %d tokens, %s attention", config.model_name, time.monotonic() - started,
                 self.num_blocks, config.block_size, self._backend.name)  # fmt: skip

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
        self._backend.allocate(self._model.layers, self.num_blocks, self.config.block_size, self._model.dtype)

    def free_cache(self) -> None:
        """Give the memory of the KV cache back. No sequence may be running."""
        self._backend.free()

    # -- one step -------------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, scheduled: SchedulerOutput) -> StepResult:
        """Compute the scheduled tokens; sample where a sequence's last token is among them."""
        self._set_threads(scheduled.awaits_embeddings)
        self._update_states(scheduled)
        result = StepResult()
        if not scheduled.num_scheduled_tokens:
            return result
        inputs = self._batch.gather(scheduled)
        wanted, owners = self._logits_indices(inputs)
        logits = self._forward(inputs, wanted, self._place(inputs, scheduled) if scheduled.embeddings else [])
        self._batch.advance(inputs)
        if owners is not None:
            self._collect_prompt_logprobs(inputs, logits, wanted, owners, result)
            logits = logits[torch.from_numpy(np.isin(wanted, self._last_tokens(inputs))).to(logits.device)]
        if len(logits):
            self._sample(inputs, logits, result)
        result.errors.update(self._errors)
        return result

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

    @staticmethod
    def _last_tokens(inputs: StepInputs) -> np.ndarray:
        """Flat index of the last token of each sequence that samples."""
        return inputs.metadata.query_start_loc[1:][inputs.samples] - 1

    def _logits_indices(self, inputs: StepInputs) -> tuple[np.ndarray, np.ndarray | None]:
        """Flat indices of the tokens whose logits are needed, and, where prompts' log probabilities are asked for, whose they
        are."""
        wants_prompt = [self._sampler.num_prompt_logprobs(row) is not None for row in inputs.rows.tolist()]
        if not any(wants_prompt):
            return self._last_tokens(inputs), None
        start = inputs.metadata.query_start_loc
        owners = np.repeat(np.arange(len(inputs.rows)), np.diff(start))
        wanted = np.array(wants_prompt)[owners] & (inputs.positions + 1 < self._batch.num_prompt_tokens[inputs.rows[owners]])
        wanted[self._last_tokens(inputs)] = True
        indices = np.flatnonzero(wanted)
        return indices, owners[indices]

    def _forward(self, inputs: StepInputs, wanted: np.ndarray, slices: list[PlacedSlice]) -> torch.Tensor:
        device = self.config.device
        self._backend.begin(inputs.metadata)
        token_ids = torch.from_numpy(inputs.token_ids).to(device)
        positions = inputs.positions if inputs.axis_positions is None else inputs.axis_positions
        arguments = (torch.from_numpy(positions).to(device), torch.from_numpy(wanted.astype(np.int64)).to(device), self._backend)
        if self._media is None or not slices:
            return self._model.forward(token_ids, *arguments)
        with self._media.adding(slices):
            return self._model.forward(token_ids, *arguments, inputs_embeds=self._media.embed(token_ids, slices))

    def _collect_prompt_logprobs(
        self, inputs: StepInputs, logits: torch.Tensor, wanted: np.ndarray, owners: np.ndarray, result: StepResult
    ) -> None:
        for index in np.unique(owners).tolist():
            row = int(inputs.rows[index])
            num_top = self._sampler.num_prompt_logprobs(row)
            lines = np.flatnonzero((owners == index) & (inputs.positions[wanted] + 1 < self._batch.num_prompt_tokens[row]))
            if num_top is None or not len(lines):
                continue
            next_tokens = self._batch.token_ids[row, inputs.positions[wanted[lines]] + 1].astype(np.int64)
            entries: list[TokenLogprobs] = gather_logprobs(logits[torch.from_numpy(lines).to(logits.device)], next_tokens, num_top)
            result.prompt_logprobs[inputs.request_ids[index]] = entries

    def _sample(self, inputs: StepInputs, logits: torch.Tensor, result: StepResult) -> None:
        indices = np.flatnonzero(inputs.samples)
        rows = inputs.rows[indices]
        sampled = self._sampler.sample(logits, rows)
        self._batch.append_tokens(rows, sampled.token_ids)
        request_ids = [inputs.request_ids[index] for index in indices.tolist()]
        result.token_ids = dict(zip(request_ids, sampled.token_ids.tolist(), strict=True))
        result.logprobs = {request_ids[index]: entry for index, entry in sampled.logprobs.items()}
        for index in sampled.invalid:
            result.errors[request_ids[index]] = "the model's logits for this request hold no finite value"

    # -- start-up -------------------------------------------------------------------------------------------------------------

    def _check_against_reference(self) -> None:
        """Run the probe in two chunks on the paged path, then compare with transformers' ordinary forward pass."""
        probe = self._model.probe_token_ids.tolist()
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        blocks = list(range(-(-len(probe) // self.config.block_size)))
        new = NewSequence(_PROBE_ID, probe, len(probe), 0, blocks, sampling)
        half = len(probe) // 2
        pieces = []
        with torch.inference_mode():
            self._update_states(SchedulerOutput(new=[new]))
            for num_tokens in (half, len(probe) - half):
                step = SchedulerOutput(num_scheduled_tokens={_PROBE_ID: num_tokens})
                inputs = self._batch.gather(step)
                pieces.append(self._forward(inputs, np.arange(inputs.metadata.num_tokens), []))
                self._batch.advance(inputs)
        self._update_states(SchedulerOutput(dropped=[_PROBE_ID]))
        check_parity(self._model, torch.cat(pieces), self.config.model_name)
        self._check_embeddings_path(new)
        del self._model.probe_logits

    def _check_embeddings_path(self, probe: NewSequence) -> None:
        """Take no media where the model computes something else from embeddings than from the tokens that they are of."""
        if self._media is None:
            return
        num_tokens = len(probe.token_ids)
        with torch.inference_mode():
            self._update_states(SchedulerOutput(new=[probe]))
            inputs = self._batch.gather(SchedulerOutput(num_scheduled_tokens={_PROBE_ID: num_tokens}))
            self._backend.begin(inputs.metadata)
            token_ids, positions = torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions)
            token_ids, positions = token_ids.to(self.config.device), positions.to(self.config.device)
            embeds = self._media.embed(token_ids, [])
            wanted = torch.arange(num_tokens, device=self.config.device)
            try:
                logits = self._model.forward(token_ids, positions, wanted, self._backend, embeds)
                check_parity(self._model, logits, self.config.model_name)
            # The families' own code, which may insist on token ids.
            except Exception as error:
                model_type = self._model.config.model_type
                self._media, self.media_traits = None, f"{model_type} does not run on embeddings alone; media items cannot be taken"
                log.warning("media are refused: %s (%s)", self.media_traits, error)
        self._update_states(SchedulerOutput(dropped=[_PROBE_ID]))

    def warm_up(self) -> StepCosts:
        """Run prefills and decodes, so that the first requests find kernels, buffers and threads ready, and measure what they cost.

        On an accelerator the first is the largest prefill that there can be: whether its memory suffices is known then.
        """
        started = time.monotonic()
        config = self.config
        num_tokens = min(config.max_num_batched_tokens, config.max_model_len - 1, self.num_blocks * config.block_size - 1)
        self._time_prefill(num_tokens if config.device.type != "cpu" else min(num_tokens, _MEASURED_SIZE))
        costs = self._measure_costs(min(num_tokens, _MEASURED_SIZE), min(config.max_num_seqs, self.num_blocks, _MEASURED_SIZE))
        log.info("warmed up in %.1f s; a step takes %.1f ms, %.2f more per decoding sequence, %.2f per prompt token",
                 time.monotonic() - started, costs.fixed_s * 1e3, costs.decode_s * 1e3,
                 costs.prompt_token_s * 1e3)  # fmt: skip
        return costs

    def _measure_costs(self, num_tokens: int, num_seqs: int) -> StepCosts:
        # Other services are starting on the same cores: the quicker of two is nearer to what it takes.
        one_s, several_s, prompt_s = (
            min(time_step(size) for _ in range(2))
            for time_step, size in ((self._time_decode, 1), (self._time_decode, num_seqs), (self._time_prefill, num_tokens))
        )
        decode_s = max(0.0, several_s - one_s) / max(1, num_seqs - 1)
        prompt_token_s = max(0.0, prompt_s - one_s) / max(1, num_tokens - 1)
        return StepCosts(max(one_s - decode_s, 1e-6), decode_s, prompt_token_s)

    def _time_prefill(self, num_tokens: int) -> float:
        """Seconds of a step with one prompt in it."""
        blocks = list(range(-(-(num_tokens + 1) // self.config.block_size)))
        prompt = NewSequence("warm-up", [0] * num_tokens, num_tokens, 0, blocks, _WARM_UP_SAMPLING)
        return self._time([prompt], num_tokens)

    def _time_decode(self, num_seqs: int) -> float:
        """Seconds of a step in which so many sequences compute one token each."""
        return self._time([NewSequence(f"warm-up-{i}", [0], 1, 0, [i], _WARM_UP_SAMPLING) for i in range(num_seqs)], 1)

    def _time(self, sequences: list[NewSequence], num_tokens: int) -> float:
        ids = [sequence.request_id for sequence in sequences]
        started = time.perf_counter()
        self.execute(SchedulerOutput(new=sequences, num_scheduled_tokens=dict.fromkeys(ids, num_tokens)))
        elapsed_s = time.perf_counter() - started
        self.execute(SchedulerOutput(dropped=ids))
        return elapsed_s
