"""How far narrower types move the model's distribution from float32: in transformers' own forward pass, and in this engine.

    python -m benchmarks.numerics [--model NAME ...] [--num-tokens 1500] [--text FILE ...]

Tells, over the positions of each text: perplexity, how often the likeliest token is float32's, the mean Kullback-Leibler
divergence from the distribution in float32, and the root mean square error of the logits (their mean removed: a common shift
changes no probability), by itself and relative to the logits.

A checkpoint whose weights are quantised is compared with its own weights, dequantised, and inputs in float32.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from triptych_common.host.cores import num_usable_cores
from triptych_common.host.torch_env import set_torch_environment

set_torch_environment()  # as the engine does before torch is imported

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from triptych_common.model.store import TEXT_MODEL, read_json, resolve_model  # noqa: E402
from triptych_common.model.weights import gguf_file  # noqa: E402
from triptych_engine.runner.cpu.kernels import load_kernels  # noqa: E402
from triptych_engine.runner.cpu.linear.quantized_modules import CpuQuantizedModules  # noqa: E402
from triptych_engine.runner.model.loader import load_model  # noqa: E402
from triptych_engine.settings import EngineSettings  # noqa: E402

from benchmarks.engine.local import load_engine  # noqa: E402
from benchmarks.harness.machine import REPOSITORY  # noqa: E402
from benchmarks.harness.sitting import describe, new_parser  # noqa: E402
from benchmarks.report.hold import hold  # noqa: E402

#: Ways to compute in this engine -> its settings.
_OURS: dict[str, dict[str, str]] = {
    "default": {},
    "cache float32": {"kv_cache_dtype": "float32"},
    "cache int8": {"kv_cache_dtype": "int8"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
#: Those that a checkpoint with quantised weights has.
_OF_QUANTIZED = ("default", "cache float32", "cache int8")


def transformers_logits(path: Path, dtype: torch.dtype, texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """[num_tokens, vocab_size] float32 of each text, of transformers' ordinary forward pass."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    with torch.inference_mode():
        return [model(torch.tensor([token_ids])).logits[0].float() for token_ids in texts]


def dequantized_logits(path: Path, texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """The same of a quantised checkpoint, with its exact weights."""
    kernels = load_kernels()
    if kernels is None:
        raise SystemExit("quantised checkpoints need the CPU kernels")
    modules, longest = CpuQuantizedModules(kernels, batch_invariant=True), max(map(len, texts))
    cpu = torch.device("cpu")
    model = load_model(path, path.name, dtype=None, device=cpu, max_model_len=longest, quantized_modules=modules).model
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return [model(torch.tensor([token_ids])).logits[0] for token_ids in texts]


def engine_logits(path: Path, settings: dict[str, str], texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """The same from the engine."""
    longest = max(map(len, texts))
    room = {"max_model_len": longest + 64, "max_num_batched_tokens": longest, "kv_cache_memory": 1 << 30}
    runner = load_engine(EngineSettings(model=str(path), **room, **settings)).runner  # type: ignore[arg-type]
    return [runner.prompt_logits(token_ids).float() for token_ids in texts]


def compare(token_ids: list[int], logits: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    """How far logits, [num_tokens, vocab_size], are from exact ones."""
    perplexity = functional.cross_entropy(logits[:-1], torch.tensor(token_ids[1:])).exp()
    agreement = (logits.argmax(-1) == exact.argmax(-1)).float().mean()
    divergence = functional.kl_div(logits.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="batchmean")
    error = logits - exact
    rmse = (error - error.mean(-1, keepdim=True)).square().mean().sqrt()
    typical = (exact - exact.mean(-1, keepdim=True)).square().mean().sqrt()
    figures = {
        "perplexity": perplexity,
        "agreement": agreement,
        "divergence": divergence,
        "rmse": rmse,
        "relative_rmse": rmse / typical,
    }
    return {name: figure.item() for name, figure in figures.items()}


def measure(model: str, texts_of: Sequence[Path], num_tokens: int) -> list[dict]:
    """The figures of each way to compute a model, for each text."""
    path = resolve_model(model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [tokenizer(text.read_text())["input_ids"][:num_tokens] for text in texts_of]
    is_quantized = gguf_file(path) is not None or "quantization_config" in read_json(path / "config.json")
    exact = dequantized_logits(path, texts) if is_quantized else transformers_logits(path, torch.float32, texts)
    ways = {} if is_quantized else {"transformers, bfloat16": lambda: transformers_logits(path, torch.bfloat16, texts)}
    for name in _OF_QUANTIZED if is_quantized else _OURS:
        ways[f"Triptych, {name}"] = functools.partial(engine_logits, path, _OURS[name], texts)
    runs = []
    for name, compute in {"weights and inputs in float32": lambda: exact, **ways}.items():
        print(f"{model}: {name}", flush=True)
        for text, token_ids, logits, expected in zip(texts_of, texts, compute(), exact, strict=True):
            runs.append({"model": model, "way": name, "text": text.name, **compare(token_ids, logits, expected)})
    return runs


def run(args: argparse.Namespace) -> dict:
    """Measure all models; returns the results."""
    described = describe("numerics")
    torch.set_num_threads(num_usable_cores())
    runs = [one for model in args.model for one in measure(model, args.text, args.num_tokens)]
    return described | {"load": {"num_tokens": args.num_tokens, "texts": [text.name for text in args.text]}, "runs": runs}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", nargs="+", default=[TEXT_MODEL])
    parser.add_argument("--num-tokens", type=int, default=1500, help="of each text, from its begin")
    parser.add_argument("--text", type=Path, nargs="+", default=[REPOSITORY / "LICENSE"], metavar="FILE")
    parser.add_argument("--name", default="numerics", help="of the results' file")
    args = parser.parse_args()
    hold(lambda: run(args), lambda results: 0, args.name)


if __name__ == "__main__":
    main()
