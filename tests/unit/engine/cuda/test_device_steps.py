"""Whole steps on a pretended GPU: what they launch, and that nothing in them is on the host or waits for the device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.builders.engine import GREEDY, a_tiny_llama_config, save_random_model
from support.builders.text_families import FAMILIES
from support.drivers.engine import EngineDriver, in_this_process
from transformers import PretrainedConfig
from triptych_engine.runner import builder
from triptych_engine.runner.model import loader
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput

pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 fails with NumPy 2.4
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is off on a machine with a GPU", allow_module_level=True)

from support.drivers.pretended_gpu import Launches, move_to_pretended_gpu, multiply_bfloat16
from triptych_engine.runner.cuda import paged_kernels
from triptych_engine.runner.cuda.attention import CudaAttention
from triptych_engine.runner.cuda.fused import CudaFusedKernels
from triptych_engine.runner.cuda.graphed_decode import Recording

pytestmark = in_this_process
CPU = torch.device("cpu")
NUM_LAYERS = 3
PROMPT, MAX_SEQS, MAX_MODEL_LEN = 5, 8, 1024


@dataclass(frozen=True)
class Case:
    """A kind of model, and what a decoding step of it launches."""

    config: Callable[[], PretrainedConfig]
    is_fused: bool
    #: For each layer, without the join of parts where keys are split; and beside the layers.
    layer_launches: int
    step_launches: int


CASES = {
    # Add and norm, q/k/v, rotation and cache, attention, output, add and norm, gate and up, SiLU, down.
    # Beside the layers: 4 for the ids of tokens that the host may not know, embedding, 2 conversions, 6 for the rotation, the last
    # sum, rows, norm, head and its conversion.
    "Llama": Case(lambda: a_tiny_llama_config(num_hidden_layers=NUM_LAYERS), True, layer_launches=9, step_launches=18),
    # The same. Beside the layers, a second rotary embedding of 6, and the scale of the embedding 2.
    "Gemma 3": Case(lambda: FAMILIES["gemma3-text"], True, layer_launches=9, step_launches=26),
    # In place of gate and up, SiLU, down: the router's product, the choice, gate and up with SiLU, down. Beside the layers, zeros
    # for the counts of their experts' tokens.
    "Qwen3-MoE": Case(lambda: FAMILIES["qwen3-moe"], True, layer_launches=10, step_launches=19),
}  # fmt: skip
#: What a step launches beside the model: greedy tokens 4.
SAMPLING_LAUNCHES = 4


class OnDevice:
    """A runner whose steps are launched on a pretended GPU."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(builder, "choose_backend", lambda *args, **options: CudaAttention(CPU))
        monkeypatch.setattr(builder, "fused_kernels", lambda *args: CudaFusedKernels(CPU))
        monkeypatch.setattr(builder, "load_kernels", lambda: None)
        multiply_bfloat16(monkeypatch)
        # Each token takes long under Triton's interpreter.
        monkeypatch.setattr(loader, "NUM_PROBE_TOKENS", 4)
        driver = EngineDriver(path, max_num_seqs=MAX_SEQS, max_model_len=MAX_MODEL_LEN, num_blocks=32, dtype=torch.bfloat16)
        self.runner = driver.runner
        self.is_fused = self.runner._model.decoder is not None
        move_to_pretended_gpu(self.runner)
        # Of an H200: keys of few sequences are split among its multiprocessors, and their parts are joined.
        monkeypatch.setattr(paged_kernels, "_num_processors", lambda device: 132)
        self._launches = Launches(monkeypatch, computes=False)

    def add(self, num_seqs: int) -> Counter[str]:
        """What a step of so many prompts launches."""
        self._ids = [f"r{number}" for number in range(num_seqs)]
        new = [NewSequence(key, [7] * PROMPT, PROMPT, 0, [number], GREEDY) for number, key in enumerate(self._ids)]
        return self._step(SchedulerOutput(new=new, num_scheduled_tokens=dict.fromkeys(self._ids, PROMPT)))

    def decode(self) -> Counter[str]:
        return self._step(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(self._ids, 1)))

    def _step(self, scheduled: SchedulerOutput) -> Counter[str]:
        self._launches.names.clear()
        with self._launches:
            self.runner.sample(self.runner.forward(scheduled))
        return Counter(self._launches.names)

    def record(self) -> dict[int, Counter[str]]:
        """Batch size -> what its recording launches when it is replayed."""
        recorded: dict[int, Counter[str]] = {}

        def record(function: Callable[[], torch.Tensor]) -> Recording:
            self._launches.names.clear()
            with self._launches:
                output = function()
            recorded[len(output)] = Counter(self._launches.names)
            return Recording(output, lambda: None)

        self.runner._recorder = type("Recorder", (), {"record": staticmethod(record)})()
        self.runner._graphs = self.runner._record_decode()
        assert self.runner._graphs is not None, "nothing in a decoding step waits for the device"
        return recorded


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def on_device(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnDevice:
    return OnDevice(save_random_model(tmp_path, case.config(), dtype=torch.bfloat16), monkeypatch)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_what_a_step_launches(case: Case, on_device: OnDevice):
    """As many kernels whatever the number of sequences; with recorded steps, one replay and those that sample."""
    assert on_device.is_fused == case.is_fused
    prompts = on_device.add(3)
    assert prompts["prompt_kernel"] == NUM_LAYERS
    assert not prompts["decode_kernel"]
    launched = on_device.decode()
    in_layers = NUM_LAYERS * case.layer_launches
    assert launched.total() == in_layers + case.step_launches + SAMPLING_LAUNCHES, launched
    assert launched["decode_kernel"] == NUM_LAYERS
    recorded = on_device.record()
    assert sorted(recorded) == [1, 2, 4, 8]
    for size, counts in recorded.items():
        assert counts["join_kernel"] == NUM_LAYERS, "a recorded step is ready for the longest context"
        copies = launched["contiguous"] - counts["contiguous"]  # of one row, all heads are dense already
        assert copies == 0 or size == 1
        assert counts.total() + copies == in_layers + NUM_LAYERS + case.step_launches, counts
    replayed = on_device.decode()
    assert replayed.total() == SAMPLING_LAUNCHES, replayed


@pytest.mark.parametrize("case", ["Llama"], indirect=True)
def test_what_waits_or_is_elsewhere_is_found(on_device: OnDevice):
    """The pretended GPU is as strict as a real one."""
    on_device.add(1)
    model = on_device.runner._model
    embed = model.forward
    for fault in (
        lambda ids: ids.max().item(),
        lambda ids: ids.nonzero(),
        lambda ids: ids + torch.ones(1),
        lambda ids: ids.cpu() + 1,
    ):
        object.__setattr__(model, "forward", lambda ids, *args, fault=fault: (fault(ids), embed(ids, *args))[1])
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            on_device.decode()
