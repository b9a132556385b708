"""How far bfloat16 moves the model's distribution from float32: transformers' own forward pass, and this engine's.

    python benchmarks/numerics.py [--model NAME] [--num-tokens 1500] [--text LICENSE]

Prints, over the positions of a text: how often the likeliest token is float32's, the mean Kullback-Leibler divergence from the
distribution in float32, and the root mean square error of the logits (their mean removed: a common shift changes no probability).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from triptych_common.model_store import TEXT_MODEL, resolve_model
from triptych_engine.output import NewSequence, SchedulerOutput
from triptych_engine.request import SamplingParams
from triptych_engine.runner.model_runner import ModelRunner, RunnerConfig

BLOCK_SIZE = 16


def transformers_logits(path: Path, dtype: torch.dtype, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size] float32, of transformers' ordinary forward pass."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float()


def engine_logits(path: Path, token_ids: list[int]) -> torch.Tensor:
    """The same from the engine's bfloat16 path."""
    num_tokens = len(token_ids)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    config = RunnerConfig(path, "numerics", num_tokens + 1, 2, num_tokens, BLOCK_SIZE, 1 << 29, dtype=torch.bfloat16)
    runner = ModelRunner(config)
    runner.load()
    sequence = NewSequence("text", token_ids, num_tokens, 0, list(range(num_blocks)), SamplingParams(max_tokens=1))
    step = SchedulerOutput(new=[sequence], num_scheduled_tokens={"text": num_tokens})
    with torch.inference_mode():
        runner._update_states(step)
        return runner._forward(runner._batch.gather(step), np.arange(num_tokens)).float()


def report(name: str, logits: torch.Tensor, exact: torch.Tensor) -> None:
    agreement = (logits.argmax(-1) == exact.argmax(-1)).float().mean()
    divergence = functional.kl_div(logits.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="batchmean")
    error = logits - exact
    rmse = (error - error.mean(-1, keepdim=True)).square().mean().sqrt()
    print(f"{name:24s} likeliest token agrees {agreement:.4f}   KL divergence {divergence:.6f}   logits' RMSE {rmse:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--num-tokens", type=int, default=1500)
    parser.add_argument("--text", type=Path, default=Path(__file__).parent.parent / "LICENSE")
    options = parser.parse_args()
    path = resolve_model(options.model)
    token_ids = AutoTokenizer.from_pretrained(path)(options.text.read_text())["input_ids"][: options.num_tokens]
    exact = transformers_logits(path, torch.float32, token_ids)
    report("transformers, bfloat16", transformers_logits(path, torch.bfloat16, token_ids), exact)
    report("triptych, bfloat16", engine_logits(path, token_ids), exact)


if __name__ == "__main__":
    main()
