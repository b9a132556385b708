"""Models from GGUF files: the logits of transformers with the dequantised weights, and refusals that say why."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.builders.engine import a_request
from support.builders.gguf_files import CONFIGS, save_gguf_model, write_gguf
from support.drivers.engine import EngineDriver
from torch import nn
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.quant import QuantEmbedding
from triptych_engine.runner.cpu.linear.quantized_modules import CpuQuantizedModules
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.model.loader import load_model
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.quantization.gguf_blocks import BLOCK_TYPES

PROMPT = [i * 37 % 96 for i in range(40)]


def load(path: Path, **options: Any) -> ModelRunner:
    return build_runner(RunnerConfig(path, "tiny", 256, 8, 64, 16, 1 << 22, **options))


def agrees(runner: ModelRunner, model: nn.Module) -> None:
    """Up to the rounding of inputs to 8 bits. Without it, the weights are the very same: the loader's own reference is checked."""
    path = runner.config.model_path
    modules = CpuQuantizedModules(load_kernels(), batch_invariant=True)  # type: ignore[arg-type]
    exact = load_model(path, "", dtype=None, device=torch.device("cpu"), max_model_len=64, quantized_modules=modules)
    torch.testing.assert_close(exact.probe_logits, model(exact.probe_token_ids[None]).logits[0], rtol=1e-3, atol=1e-3)
    expected = model(torch.tensor([PROMPT])).logits[0]
    for num_chunks in (1, 7):
        similarity = nn.functional.cosine_similarity(runner.prompt_logits(PROMPT, num_chunks=num_chunks), expected, dim=-1)
        assert similarity.median() > 0.999  # a single token of a random model may attend to another one


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_each_architecture_computes_what_transformers_does(architecture: str, tied: bool, tmp_path: Path):
    model = save_gguf_model(tmp_path, architecture, ["Q8_0"], tied=tied)
    runner = load(tmp_path)
    agrees(runner, model)
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    expected = [] if architecture == "qwen3moe" else [True, True]
    assert [layer.kernel is not None for layer in layers] == expected, "each layer is one kernel"


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_each_type_of_tensors(kind: str, tmp_path: Path):
    model = save_gguf_model(tmp_path, "llama", [kind])
    agrees(load(tmp_path), model)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_experts_of_each_type(kind: str, tmp_path: Path):
    model = save_gguf_model(tmp_path, "qwen3moe", ["Q8_0"] * 5 + [kind] * 3)
    agrees(load(tmp_path), model)


@pytest.mark.parametrize("seed", range(4))
def test_any_mixture_of_types_in_one_model(seed: int, tmp_path: Path):
    """As Q4_K_M has Q4_K, Q6_K, and Q5_0 or Q8_0 for rows that are no multiple of 256; also within one attention."""
    kinds = random.Random(seed).choices(list(BLOCK_TYPES), k=7)
    model = save_gguf_model(tmp_path, "llama", kinds)
    runner = load(tmp_path, kv_cache_dtype=torch.float32)  # in so small a model, rounded inputs alone are nearly too much
    agrees(runner, model)
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert [layer.kernel is not None for layer in layers] == [True, True], "a layer of several types is one kernel, too"


def test_the_embedding_and_the_head_share_one_weight(tmp_path: Path):
    save_gguf_model(tmp_path, "llama", ["Q8_0"], tied=True)
    model = load(tmp_path)._model.model
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, QuantEmbedding)
    assert model.get_output_embeddings().packed.memory[0].data_ptr() == embedding.packed.memory[0].data_ptr()


def test_batched_equals_alone(tmp_path: Path):
    save_gguf_model(tmp_path, "llama", ["Q4_K", "Q6_K", "Q4_0"])
    driver = EngineDriver(tmp_path, batch_invariant=True)
    requests = [a_request(str(n), [3 + (7 * i + n) % 90 for i in range(n)], max_tokens=20) for n in (1, 5, 20, 37)]
    alone = {one.request_id: driver.run(driver.scheduler(), [one])[one.request_id].token_ids for one in requests}
    again = [a_request(str(n), [3 + (7 * i + n) % 90 for i in range(n)], max_tokens=20) for n in (1, 5, 20, 37)]
    together = driver.run(driver.scheduler(max_num_batched_tokens=32), again)
    assert {name: one.token_ids for name, one in together.items()} == alone


def test_llama_3s_frequencies_come_from_its_tensor(tmp_path: Path):
    model = save_gguf_model(tmp_path, "llama", ["Q8_0"])
    factors = torch.linspace(1, 8, len(model.model.rotary_emb.inv_freq))
    rewrite(tmp_path / "model.gguf", lambda *tensor: tensor, ("rope_freqs.weight", factors.numpy()))
    model.model.rotary_emb.inv_freq /= factors
    agrees(load(tmp_path), model)


def rewrite(file: Path, change: Any, *added: tuple[str, np.ndarray]) -> None:
    """Write a file again, with tensors as `change` returns them: name, raw data, type; None leaves one out. And with others."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(file.with_suffix(".new"), reader.fields["general.architecture"].contents())
    changed = [change(tensor.name, np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors]
    extra = [(name, values, gguf.GGMLQuantizationType.F32) for name, values in added]
    for name, data, kind in [*filter(None, changed), *extra]:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file.with_suffix(".new").replace(file)


def without(name: str) -> Any:
    return lambda *tensor: None if tensor[0] == name else tensor


def test_what_is_wrong_is_named_with_its_tensor(tmp_path: Path):
    save_gguf_model(tmp_path, "llama")
    file = tmp_path / "model.gguf"
    content = file.read_bytes()

    def refused(error: type[Exception], match: str, change: Any) -> None:
        file.write_bytes(content)
        rewrite(file, change)
        with pytest.raises(error, match=match):
            load(tmp_path)

    down = "blk.1.ffn_down.weight"
    refused(StartupError, r"lacks 1 weights, e\.g\. model\.layers\.1\.mlp\.down_proj\.weight", without(down))
    refused(StartupError, r"lacks 1 weights, e\.g\. model\.norm\.weight", without("output_norm.weight"))
    zeros = np.zeros((256, 512 // 256 * 84), np.uint8)

    def renamed(name: str, *rest: Any) -> Any:
        return ("blk.1.ffn_mystery.weight" if name == down else name, *rest)

    def shorter(name: str, data: np.ndarray, kind: Any) -> Any:
        return name, data[:-1] if name == down else data, kind

    def of_2_bits(name: str, data: np.ndarray, kind: Any) -> Any:
        return (name, zeros, gguf.GGMLQuantizationType.Q2_K) if name == down else (name, data, kind)

    refused(UnsupportedModelError, r"does not know, e\.g\. blk\.1\.ffn_mystery\.weight", renamed)
    refused(StartupError, r"tensor blk\.1\.ffn_down\.weight has the shape \[255, 512\], not \[256, 512\]", shorter)
    refused(UnsupportedModelError, r"tensor blk\.1\.ffn_down\.weight of .* is Q2_K; supported are Q4_0, .*Q6_K, F32", of_2_bits)
    file.write_bytes(content[:-100])
    with pytest.raises(StartupError, match=r"model\.gguf is damaged: it has [0-9,]+ bytes and ends before the end of tensor"):
        load(tmp_path)


def test_a_missing_bias_is_named(tmp_path: Path):
    save_gguf_model(tmp_path, "qwen2", ["Q8_0"])
    rewrite(tmp_path / "model.gguf", without("blk.0.attn_q.bias"))
    with pytest.raises(StartupError, match=r"lacks 1 weights, e\.g\. model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(tmp_path)


def test_an_architecture_that_is_not_known_is_named(tmp_path: Path):
    save_gguf_model(tmp_path, "llama")
    content = (tmp_path / "model.gguf").read_bytes().replace(b"llama", b"mamba")
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="architecture 'mamba'; GGUF files are served of llama, qwen2, qwen3, qwen3moe"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": torch.bfloat16}, "computed in float32 and 8-bit integers, not in bfloat16"),
        ({"attention": "torch"}, "need the CPU kernels"),
        ({"quantization": "int8"}, "its weights are quantised already"),
    ],
)
def test_options_that_do_not_go_with_it(options: dict[str, Any], reason: str, tmp_path: Path):
    save_gguf_model(tmp_path, "llama")
    with pytest.raises(StartupError, match=reason):
        load(tmp_path, **options)


def test_no_tensor_is_dequantised_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is read at once is bounded, whatever the size of a tensor."""
    from triptych_engine.runner.quantization import tensor

    monkeypatch.setattr(tensor, "_WEIGHTS_AT_A_TIME", 256)
    most = 0
    rows = BLOCK_TYPES["Q4_0"].__class__.rows

    def noting(self: Any, raw: torch.Tensor) -> Any:
        nonlocal most
        most = max(most, len(raw))
        return rows(self, raw)

    monkeypatch.setattr(BLOCK_TYPES["Q4_0"].__class__, "rows", noting)
    model = save_gguf_model(tmp_path, "llama")
    agrees(load(tmp_path), model)
    assert most == 64


def test_a_file_is_written_as_the_reader_of_the_format_reads_it(tmp_path: Path):
    write_gguf(tmp_path / "a.gguf", "llama", ["Q8_0"])
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F32", "Q8_0"}
