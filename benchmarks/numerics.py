"""How far narrower types move the model's distribution from float32: in transformers' own forward pass, and in this engine.

    python benchmarks/numerics.py [--model NAME] [--num-tokens 1500] [--text FILE ...] [--steps]

Prints, over the positions of each text: perplexity, how often the likeliest token is float32's, the mean Kullback-Leibler
divergence from the distribution in float32, and the root mean square error of the logits (their mean removed: a common shift
changes no probability), by itself and relative to the logits. With --steps also how long a decoding step takes, unquantised and in
int8, by turns; --num-tokens 0 leaves out the rest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from triptych_common.host.cores import bear_company, num_usable_cores

bear_company()  # as the engine does before torch is imported

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from triptych_common.model.store import TEXT_MODEL, resolve_model  # noqa: E402
from triptych_engine.runner.builder import build_runner  # noqa: E402
from triptych_engine.runner.config import RunnerConfig  # noqa: E402
from triptych_engine.runner.model_runner import ModelRunner  # noqa: E402
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput  # noqa: E402
from triptych_engine.scheduling.request import SamplingParams  # noqa: E402

BLOCK_SIZE = 16
#: Of sequences in the steps that are timed.
CONTEXT = 96
STEP_ROWS = (1, 8, 32, 64)
TEXTS = (Path(__file__).parent.parent / "LICENSE",)


def transformers_logits(path: Path, dtype: torch.dtype, texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """[num_tokens, vocab_size] float32 of each text, of transformers' ordinary forward pass."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    with torch.inference_mode():
        return [model(torch.tensor([token_ids])).logits[0].float() for token_ids in texts]


def load_runner(
    path: Path, max_tokens: int, dtype: torch.dtype | None, quantization: str, kv_cache_dtype: torch.dtype | None = None
) -> ModelRunner:
    """An engine without its scheduler, for sequences of so many tokens, and as many at once as a step that is timed has."""
    num_seqs = max(STEP_ROWS)
    config = RunnerConfig(
        path, "numerics", max(max_tokens, CONTEXT) + 64, num_seqs, max(max_tokens, num_seqs * CONTEXT), BLOCK_SIZE, 1 << 30,
        dtype=dtype, kv_cache_dtype=kv_cache_dtype, quantization=quantization,
    )  # fmt: skip
    return build_runner(config)


def engine_logits(runner: ModelRunner, texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """The same from the engine."""
    return [runner.prompt_logits(token_ids).float() for token_ids in texts]


def step_ms(runner: ModelRunner, num_rows: int, num_steps: int = 30) -> float:
    """Median of decoding steps of so many sequences of about CONTEXT tokens."""
    per_sequence = -(-(CONTEXT + num_steps + 1) // BLOCK_SIZE)
    sampling = SamplingParams(max_tokens=num_steps + 1, temperature=0.0)
    names = [f"row-{row}" for row in range(num_rows)]
    new = [
        NewSequence(name, [(7 * row + i) % 1000 for i in range(CONTEXT)], CONTEXT, 0,
                    list(range(row * per_sequence, (row + 1) * per_sequence)), sampling)
        for row, name in enumerate(names)
    ]  # fmt: skip
    runner.execute(SchedulerOutput(new=new, num_scheduled_tokens=dict.fromkeys(names, CONTEXT)))
    times_s = []
    for _ in range(num_steps):
        started = time.perf_counter()
        runner.execute(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(names, 1)))
        times_s.append(time.perf_counter() - started)
    runner.execute(SchedulerOutput(dropped=names))
    return statistics.median(times_s) * 1e3


def report(name: str, token_ids: list[int], logits: torch.Tensor, exact: torch.Tensor) -> None:
    """Print a line about one way of computing."""
    perplexity = functional.cross_entropy(logits[:-1], torch.tensor(token_ids[1:])).exp()
    agreement = (logits.argmax(-1) == exact.argmax(-1)).float().mean()
    divergence = functional.kl_div(logits.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="batchmean")
    error = logits - exact
    rmse = (error - error.mean(-1, keepdim=True)).square().mean().sqrt()
    typical = (exact - exact.mean(-1, keepdim=True)).square().mean().sqrt()
    print(f"{name:24s} perplexity {perplexity:8.4f}   likeliest token agrees {agreement:.4f}   KL divergence {divergence:.6f}   "
          f"logits' RMSE {rmse:.4f} ({rmse / typical:.2%})", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--num-tokens", type=int, default=1500)
    parser.add_argument("--text", type=Path, nargs="+", default=TEXTS)
    parser.add_argument("--steps", action="store_true", help="time steps, too")
    options = parser.parse_args()
    torch.set_num_threads(num_usable_cores())
    path = resolve_model(options.model)
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [tokenizer(text.read_text())["input_ids"][: options.num_tokens] for text in options.text]
    longest = max(map(len, texts))
    if options.num_tokens:
        ways = {
            "transformers, float32": lambda: transformers_logits(path, torch.float32, texts),
            "transformers, bfloat16": lambda: transformers_logits(path, torch.bfloat16, texts),
            "triptych, default": lambda: engine_logits(load_runner(path, longest, None, "none"), texts),
            "triptych, cache float32": lambda: engine_logits(load_runner(path, longest, None, "none", torch.float32), texts),
            "triptych, bfloat16": lambda: engine_logits(load_runner(path, longest, torch.bfloat16, "none"), texts),
            "triptych, int8": lambda: engine_logits(load_runner(path, longest, None, "int8"), texts),
        }
        exact: list[torch.Tensor] = []
        for name, compute in ways.items():
            got = compute()
            exact = exact or got
            for text, token_ids, logits, expected in zip(options.text, texts, got, exact, strict=True):
                report(f"{text.name}: {name}", token_ids, logits, expected)
    if options.steps:
        runners = {name: load_runner(path, CONTEXT, None, name) for name in ("none", "int8")}
        for num_rows in STEP_ROWS:
            rounds = [{name: step_ms(runner, num_rows) for name, runner in runners.items()} for _ in range(3)]
            none, int8 = (statistics.median(one[name] for one in rounds) for name in runners)
            ratios = sorted(one["none"] / one["int8"] for one in rounds)
            print(f"{num_rows:2d} rows: {none:6.1f} ms unquantised, {int8:6.1f} ms int8: {ratios[1]:.2f} times as fast "
                  f"({ratios[0]:.2f} to {ratios[2]:.2f})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
