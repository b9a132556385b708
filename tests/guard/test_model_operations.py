"""How many torch operations and kernels a step of the model takes, and how many bytes it writes.

With a small model a step's time goes into calling, not computing, so each operation that is added shows in tokens per second. The
numbers are exact, with the versions of constraints.txt: who adds an operation changes a number here, and says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.counting import CountedLibrary, DeviceWork, device_work
from support.drivers.engine import EngineDriver
from transformers import GPTNeoXConfig, PretrainedConfig
from triptych_engine.core import EngineCore
from triptych_engine.runner import builder
from triptych_engine.runner.attention.paged import AttentionMetadata
from triptych_engine.runner.cpu import kernels as cpu_kernels

NUM_SEQS = (1, 8, 64)
SHORT, LONG = 5, 200  # tokens of a prompt
FEW_PROMPTS = 4
FEW_LAYERS, MANY_LAYERS = 2, 4
BLOCK_SIZE, MAX_MODEL_LEN, NUM_BLOCKS = 16, 256, 1024


def a_llama(num_layers: int) -> PretrainedConfig:
    return a_tiny_llama_config(num_hidden_layers=num_layers)


def a_neox(num_layers: int) -> PretrainedConfig:
    return GPTNeoXConfig(
        vocab_size=97, hidden_size=64, intermediate_size=48, num_attention_heads=4, num_hidden_layers=num_layers,
        max_position_embeddings=MAX_MODEL_LEN, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model, and what a step of it takes."""

    config: Callable[[int], PretrainedConfig]
    dtype: torch.dtype
    #: For each layer, and beside the layers.
    layer_operations: int
    step_operations: int
    layer_kernels: int
    step_kernels: int
    #: Bytes written for each layer and token, beside the layers for each token, and for each token whose logits are computed.
    layer_bytes: int
    token_bytes: int
    logits_bytes: int
    quantization: str = "none"


CASES = {
    # The whole model is one kernel. The operations around it: 3 bring ids, positions and wanted rows, 1 adds the batch's dimension,
    # 4 look up the largest position, 2 make the memory of the last states and of the logits. Sampling: 2 make tensors of the tokens
    # and of what is invalid, 2 keep the tokens for the next step, 8 bring both to the host.
    # Kernels: the model, random numbers, tokens.
    # Bytes: the last states of a token are 32 numbers. For its logits, 97 that come out, and the token, which is kept.
    "float32 of bfloat16 weights": Case(a_llama, torch.float32, 0, 22, 0, 3, layer_bytes=0, token_bytes=128, logits_bytes=396),
    # The same: numbers are rounded in the kernel.
    "bfloat16": Case(a_llama, torch.bfloat16, 0, 22, 0, 3, layer_bytes=0, token_bytes=128, logits_bytes=396),
    # The same as unquantised: inputs are quantised in the kernels.
    "int8": Case(a_llama, torch.float32, 0, 22, 0, 3, layer_bytes=0, token_bytes=128, logits_bytes=396, quantization="int8"),
    # Not of the common kind: transformers' own layers, with our products and our attention, the layer's only kernel.
    "a family that is not fused": Case(a_neox, torch.float32, 46, 34, 1, 2, layer_bytes=4032, token_bytes=604, logits_bytes=652),
}
#: Of the operations beside the layers, those that find the next tokens: a step in which no prompt ends does without.
SAMPLING_OPERATIONS, SAMPLING_KERNELS = 2 + 2 + 8, 2
#: Of the step's description, beside its block tables: ids of rows, positions, cache slots, lengths.
MAX_METADATA_BYTES_PER_TOKEN = 32


class CountedEngine:
    """The real scheduler, step loop and runner, stepped by hand."""

    def __init__(self, path: Path, case: Case, library: CountedLibrary) -> None:
        self._driver = EngineDriver(
            path, max_model_len=MAX_MODEL_LEN, max_num_seqs=max(NUM_SEQS), block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS,
            dtype=case.dtype, quantization=case.quantization,
        )  # fmt: skip
        self._library = library
        self.num_layers = self._driver.runner._model.config.num_hidden_layers
        self.metadata: list[AttentionMetadata] = []
        begin = self._driver.runner._backend.begin
        self._driver.runner._backend.begin = lambda metadata: (self.metadata.append(metadata), begin(metadata))[1]
        self.prefill([LONG] * 10)  # buffers that grow with the step have their size from here on

    def decode(self, num_seqs: int, prompt_length: int, **sampling: float) -> DeviceWork:
        """A step in which so many sequences compute one token each."""
        return self._count(self._start([prompt_length] * num_seqs, 2048, **sampling), num_steps_before=2 + num_seqs * LONG // 2048)

    def prefill(self, prompt_lengths: list[int], max_tokens: int = 2048, num_steps_before: int = 0) -> DeviceWork:
        """A step with prompts in it; with max_tokens less than they have, a chunk of them."""
        return self._count(self._start(prompt_lengths, max_tokens), num_steps_before)

    def _start(self, prompt_lengths: list[int], max_num_batched_tokens: int, **sampling: float) -> EngineCore:
        self._scheduler = self._driver.scheduler(max_num_batched_tokens=max_num_batched_tokens, caching=False)
        for number, length in enumerate(prompt_lengths):
            prompt = [3 + (number + position) % 90 for position in range(length)]
            self._scheduler.add(a_request(f"r{number}", prompt, max_tokens=40, **sampling))
        return EngineCore(self._scheduler, self._driver.executor, lambda *outputs: None)

    def _count(self, core: EngineCore, num_steps_before: int) -> DeviceWork:
        for _ in range(num_steps_before):
            core.step()
        self.metadata.clear()
        with device_work(self._library) as work:
            core.step()
        self._scheduler.abort(self._scheduler.live_request_ids)
        core.step()  # the runner forgets them
        return work


@pytest.fixture(scope="module")
def library() -> Iterator[CountedLibrary]:
    """Kernels that count; every runner of this module uses them."""
    opened: list[CountedLibrary] = []
    with pytest.MonkeyPatch.context() as patch:
        original = ctypes.CDLL
        patch.setattr(ctypes, "CDLL", lambda path: opened.append(CountedLibrary(original(path))) or opened[-1])
        kernels = cpu_kernels.load_kernels.__wrapped__()
    if kernels is None:
        pytest.skip("there are no kernels for this CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "load_kernels", lambda: kernels)
        yield opened[-1]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    case = CASES[request.param]
    if case.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 products")
    return case


@pytest.fixture(scope="module")
def engine(case: Case, library: CountedLibrary, tmp_path_factory: pytest.TempPathFactory) -> CountedEngine:
    return an_engine(case, FEW_LAYERS, library, tmp_path_factory)


def an_engine(case: Case, num_layers: int, library: CountedLibrary, paths: pytest.TempPathFactory) -> CountedEngine:
    weights = torch.bfloat16 if case.config is a_llama else torch.float32
    return CountedEngine(save_random_model(paths.mktemp("model"), case.config(num_layers), dtype=weights), case, library)


def assert_takes(work: DeviceWork, num_operations: int, num_kernels: int) -> None:
    assert work.num_operations == num_operations, work.operations
    assert work.num_kernels == num_kernels, work.kernels


@pytest.mark.parametrize("num_seqs", NUM_SEQS)
def test_a_decoding_step_takes_as_many_operations_whatever_the_number_of_sequences(
    case: Case, engine: CountedEngine, num_seqs: int
) -> None:
    assert_takes(
        engine.decode(num_seqs, SHORT),
        case.step_operations + engine.num_layers * case.layer_operations,
        case.step_kernels + engine.num_layers * case.layer_kernels,
    )


def test_each_layer_takes_its_share(case: Case, library: CountedLibrary, tmp_path_factory: pytest.TempPathFactory) -> None:
    deep = an_engine(case, MANY_LAYERS, library, tmp_path_factory)
    work = deep.decode(8, SHORT)
    assert_takes(
        work,
        case.step_operations + MANY_LAYERS * case.layer_operations,
        case.step_kernels + MANY_LAYERS * case.layer_kernels,
    )
    assert work.num_written_bytes == 8 * (case.logits_bytes + case.token_bytes + MANY_LAYERS * case.layer_bytes)


@pytest.mark.parametrize("num_seqs", NUM_SEQS)
def test_bytes_grow_with_the_tokens_of_the_step_and_not_with_the_context(case: Case, engine: CountedEngine, num_seqs: int) -> None:
    short, long = engine.decode(num_seqs, SHORT), engine.decode(num_seqs, LONG)
    expected = num_seqs * (case.logits_bytes + case.token_bytes + engine.num_layers * case.layer_bytes)
    assert short.num_written_bytes == expected, short.written_bytes
    assert long.num_written_bytes == expected, long.written_bytes
    assert long.operations == short.operations


@pytest.mark.parametrize("num_prompts", NUM_SEQS)
def test_a_prompt_takes_as_many_operations_as_a_token(case: Case, engine: CountedEngine, num_prompts: int) -> None:
    assert_takes(
        engine.prefill([SHORT] * num_prompts),
        case.step_operations + engine.num_layers * case.layer_operations,
        case.step_kernels + engine.num_layers * case.layer_kernels,
    )


def test_a_prompts_logits_are_computed_for_its_last_token(case: Case, engine: CountedEngine) -> None:
    for length in (SHORT, LONG):
        work = engine.prefill([length] * FEW_PROMPTS)
        num_tokens = length * FEW_PROMPTS
        expected = num_tokens * (case.token_bytes + engine.num_layers * case.layer_bytes) + FEW_PROMPTS * case.logits_bytes
        assert work.num_written_bytes == expected, work.written_bytes


@pytest.mark.parametrize("prompt_lengths", [[LONG], [90, LONG, 60]])
def test_a_chunk_takes_no_more_and_samples_nothing(case: Case, engine: CountedEngine, prompt_lengths: list[int]) -> None:
    assert_takes(
        engine.prefill(prompt_lengths, max_tokens=20, num_steps_before=1),
        case.step_operations - SAMPLING_OPERATIONS + engine.num_layers * case.layer_operations,
        case.step_kernels - SAMPLING_KERNELS + engine.num_layers * case.layer_kernels,
    )


@pytest.mark.parametrize("num_seqs", NUM_SEQS[1:])
def test_drawing_takes_as_many_operations_whatever_the_number_of_sequences(
    case: Case, engine: CountedEngine, num_seqs: int
) -> None:
    work = engine.decode(num_seqs, SHORT, temperature=1.0)
    assert work.num_operations == (case.step_operations + engine.num_layers * case.layer_operations), work.operations


@pytest.mark.parametrize("prompt_length", [SHORT, LONG])
@pytest.mark.parametrize("num_seqs", NUM_SEQS)
def test_a_step_describes_itself_in_few_bytes(engine: CountedEngine, num_seqs: int, prompt_length: int) -> None:
    engine.decode(num_seqs, prompt_length)
    metadata = engine.metadata[0]
    # Of the rows in the step, and no wider than the longest of them needs: four bytes per block.
    assert metadata.block_table.nbytes == 4 * num_seqs * -(-metadata.seq_lens.max() // BLOCK_SIZE)
    arrays = [value for field in fields(metadata) if isinstance(value := getattr(metadata, field.name), np.ndarray)]
    rest = sum(array.nbytes for array in arrays) - metadata.block_table.nbytes
    assert rest <= MAX_METADATA_BYTES_PER_TOKEN * num_seqs
