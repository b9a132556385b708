"""Models that are one call of a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from torch import nn
from transformers import PretrainedConfig
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.model_kernel import ModelKernel
from triptych_engine.runner.fusion.decoder import Decoder, find_decoder
from triptych_engine.runner.fusion.layer import first_tokens
from triptych_engine.runner.fusion.rotary import PositionTables
from triptych_engine.runner.model_runner import ModelRunner

PROMPT = [(7 * i) % 90 for i in range(50)]


def a_runner(tmp_path: Path, config: PretrainedConfig | None = None, limit: int = 256, **options: Any) -> ModelRunner:
    path = save_random_model(tmp_path, config or a_tiny_llama_config(num_hidden_layers=4), dtype=torch.bfloat16)
    return build_runner(RunnerConfig(path, "test", limit, 8, 64, 16, 1 << 20, **({"dtype": torch.float32} | options)))


@pytest.fixture(params=["none", "int8"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> ModelRunner:
    return a_runner(tmp_path, quantization=request.param)


def found(runner: ModelRunner) -> Decoder | None:
    """The decoder of its model, looked for once more."""
    model, probe = runner._model, runner._model.probe_token_ids
    return find_decoder(model.model, CpuFusedKernels(load_kernels()), probe, model.position_ids(torch.arange(len(probe)) * 10))


def test_one_call_that_computes_something_else_is_not_used(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compute = ModelKernel.logits
    monkeypatch.setattr(ModelKernel, "logits", lambda self, *args: compute(self, *args) * 1.5)
    decoder = found(runner)
    assert decoder is not None
    assert not decoder.is_one_call
    assert "one call computes something else" in caplog.text


def test_one_call_that_fails_is_not_used(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ModelKernel, "logits", lambda self: None)
    decoder = found(runner)
    assert decoder is not None
    assert not decoder.is_one_call
    assert "one call fails" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_one_call_computes_what_its_parts_do(tmp_path: Path, dtype: torch.dtype, quantization: str) -> None:
    runner = a_runner(tmp_path, dtype=dtype, quantization=quantization)
    decoder = runner._model.decoder
    assert isinstance(decoder, Decoder)
    whole = decoder._whole
    assert isinstance(whole, ModelKernel)
    expected = runner.prompt_logits(PROMPT, num_chunks=3)
    decoder.compute_by_parts()
    assert torch.equal(runner.prompt_logits(PROMPT, num_chunks=3), expected)


def test_one_call_computes_only_the_wanted_tokens(runner: ModelRunner) -> None:
    expected = runner.prompt_logits(PROMPT)
    wanted, inputs_of = torch.tensor([3, 40, 17]), runner._forward
    runner._forward = lambda inputs, _, *args, **to: inputs_of(inputs, wanted.numpy(), *args, **to)  # type: ignore[method-assign]
    torch.testing.assert_close(runner.prompt_logits(PROMPT), expected[wanted], rtol=2e-2, atol=2e-2)


def test_positions_that_depend_on_one_another_have_no_table(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with "dynamic" scaling, where a long context changes the angles of all positions."""

    class Dynamic(nn.Module):
        def forward(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            angles = (position_ids[..., None] / position_ids.max().clamp(min=1)).expand(-1, -1, 8)
            return angles.cos(), angles.sin()

    positions = torch.tensor([[0, 5, 9]])
    assert PositionTables.find(Dynamic(), torch.zeros(1, 1, 32), positions) is None
    own: Any = runner._model.model
    rotary = own.model.rotary_emb
    tables = PositionTables.find(rotary, torch.zeros(1, 1, 32), torch.tensor([[0, 300, 699]]))
    assert tables is not None
    for wanted in ([7], [250, 3], [600]):  # it grows
        cos, sin, rows = tables.of(torch.tensor([wanted]))
        assert rows is not None
        expected = rotary(torch.zeros(1, len(wanted), 32), torch.tensor([wanted]))
        assert torch.equal(cos[rows[0]], expected[0][0])
        assert torch.equal(sin[rows[0]], expected[1][0])
    assert len(tables._cos) <= 700
    monkeypatch.setattr(tables, "_most", 650)  # not beyond
    cos, sin, rows = tables.of(torch.tensor([[660, 2]]))
    assert rows is None
    assert torch.equal(cos, rotary(torch.zeros(1, 2, 32), torch.tensor([[660, 2]]))[0][0])


#: Their angles depend on the longest context so far, but only beyond the limit up to which a model is served.
SCALED = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 300,
        "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("limit", [200, 300])
def test_angles_that_would_change_beyond_the_context_do_not(tmp_path: Path, kind: str, limit: int) -> None:
    config = a_tiny_llama_config(num_hidden_layers=2, max_position_embeddings=300, rope_parameters=SCALED[kind])
    runner = a_runner(tmp_path, config, limit)
    decoder = runner._model.decoder
    assert isinstance(decoder, Decoder)
    assert decoder.is_one_call
    prompt = [(7 * i) % 90 for i in range(limit - 10)]
    whole = runner.prompt_logits(prompt, num_chunks=3)  # the table grows meanwhile
    decoder.compute_by_parts()
    assert torch.equal(runner.prompt_logits(prompt, num_chunks=3), whole)


@pytest.mark.parametrize("wanted", [[], [15], [9, 2, 9], [3] * 16])
def test_one_call_takes_embeddings_and_any_wanted_rows(runner: ModelRunner, wanted: list[int]) -> None:
    decoder, backend = runner._model.decoder, runner._backend
    assert isinstance(decoder, Decoder)
    token_ids, positions, rows = torch.tensor(PROMPT[:16]), torch.arange(16)[None], torch.tensor(wanted, dtype=torch.int64)
    with torch.inference_mode():
        embeds = runner._model.model.get_input_embeddings()(token_ids[None])
        results = []
        for inputs in (None, embeds):
            for compute in (decoder.logits, decoder.logits_by_parts):
                backend.begin(first_tokens(16))
                results.append(compute(token_ids, positions, backend, inputs, rows))
    for result in results[1:]:
        assert torch.equal(result, results[0])
