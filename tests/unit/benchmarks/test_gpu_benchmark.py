"""The GPU benchmark: its arithmetic, and all of its code on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import Decode, ModelSize, measure_decode

SIZE = ModelSize(num_weights=1000, kv_values_per_token=16, bytes_per_value=2)


def test_a_decode_step_reads_all_matrices_once_and_each_sequence_s_cache() -> None:
    assert SIZE.decode_bytes(0, 100) == 2 * 1000
    assert SIZE.decode_bytes(3, 100) == 2 * (1000 + 3 * 100 * 16)
    assert SIZE.prefill_flops(5) == 2 * 5 * 1000


def test_the_sizes_are_those_of_the_model_that_is_made(tmp_path: Path) -> None:
    size = gpu.make_model(tmp_path, tiny=True, dtype=torch.float32)
    # Per layer q and o of 64 x 64, k and v of 64 x 32, three of 64 x 96; a head of 512 x 64. The rest of the file are norms.
    assert size.num_weights == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 512 * 64
    file = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert size.num_weights * size.bytes_per_value < file < 1.05 * size.num_weights * size.bytes_per_value
    assert size.kv_values_per_token == 2 * 2 * 2 * 16


def test_what_had_to_be_read_per_second_is_a_step_s_bytes_by_its_time() -> None:
    assert Decode(4, tokens_per_s=40.0, mean_context=50.0).bytes_per_s(SIZE) == pytest.approx(SIZE.decode_bytes(4, 50) * 10)


def test_decode_is_measured_while_all_decode():
    early, late = [0.0, 1.0, 2.0, 3.0], [1.5, 2.5, 3.5, 4.5]
    decode = measure_decode([early, late], prompt_len=10)
    # From 1.5, when the late one has its first token, to 3.0, when the early one ends: tokens at 2.0, 3.0 and 2.5.
    assert decode.tokens_per_s == pytest.approx(3 / 1.5)
    assert decode.mean_context == pytest.approx((12 + 13 + 11) / 3)
    with pytest.raises(ValueError, match="did not decode at the same time"):
        measure_decode([[0.0, 1.0], [2.0, 3.0]], 10)


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.model
def test_all_of_it_runs_on_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--device", "cpu", "--tiny", "--batch-sizes", "1", "3", "--prompt-len", "20", "--num-tokens", "8"]
    output = tmp_path / "gpu.json"
    flags += ["--num-prefills", "2", "--repeats", "1", "--kv-cache-gb", "1", "--output", str(output)]
    assert gpu.main(flags) == 0
    results = json.loads(output.read_text())
    assert [one["batch_size"] for one in results["engine"]["decode"]] == [1, 3]
    assert all(one["share_of_bandwidth"] > 0 for one in results["engine"]["decode"])
    assert results["engine"]["prefill"]["tokens_per_s"] > 0
    assert "of the bandwidth" in capsys.readouterr().out
