"""The GPU benchmark: its arithmetic, and all of its code on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import ModelSize
from benchmarks.report import gpu as report

SIZE = ModelSize(num_weights=1000, num_head_weights=200, kv_values_per_token=16, bytes_per_value=2)


def test_a_decode_step_reads_all_matrices_once_and_each_sequence_s_cache() -> None:
    assert SIZE.decode_bytes(0, 100) == 2 * 1000
    assert SIZE.decode_bytes(3, 100) == 2 * (1000 + 3 * 100 * 16)
    assert SIZE.prefill_flops(5) == 2 * (5 * 800 + 200)


def test_the_sizes_are_those_of_the_model_that_is_made(tmp_path: Path) -> None:
    size = gpu.make_model(gpu.shapes()["tiny"], tmp_path, torch.device("cpu"), torch.float32)
    # Per layer q and o of 64 x 64, k and v of 64 x 32, three of 64 x 96; a head of 512 x 64. The rest of the file are norms.
    assert size.num_weights == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 512 * 64
    file = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert size.num_weights * size.bytes_per_value < file < 1.05 * size.num_weights * size.bytes_per_value
    assert size.num_head_weights == 512 * 64
    assert size.kv_values_per_token == 2 * 2 * 2 * 16


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.model
def test_all_of_it_runs_on_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--device", "cpu", "--shapes", "tiny", "--batch-sizes", "1", "3", "--prompt-len", "20", "--num-steps", "8"]
    flags += ["--prefill-len", "70", "--mixed", "2", "--long-prompt-len", "90", "--max-num-batched-tokens", "64", "--repeats", "1"]
    output = tmp_path / "gpu.json"
    assert gpu.main([*flags, "--kv-cache-gb", "1", "--output", str(output)]) == 0
    results = json.loads(output.read_text())
    figures = results["shapes"]["tiny"]
    assert [one["batch_size"] for one in figures["decode"]] == [1, 3]
    assert all(one["share_of_bandwidth"] > 0 for one in figures["decode"])
    assert figures["prefill"]["share_of_matrix_rate"] > 0
    assert len(figures["mixed"]["steps_s"]) >= 90 * 3 // 64
    assert "of the bandwidth" in capsys.readouterr().out
    text = report.render(results, "gpu.json")
    assert "| tiny | decode, 3 sequences |" in text
