"""What prompt lookup is worth: the same answers with draft tokens and without, in alternation.

    python -m benchmarks.speculation
    python -m benchmarks.speculation --concurrency 1 4 --model FILE.gguf

Three kinds of chats: code to edit, a document to quote, and questions, whose answers repeat nothing that was said. Answers end
where the model ends them, at most after --max-tokens. The engine's step loop runs in this process, without services around it.
The table has the tokens per second of each kind, the ratio of each round, and how many draft tokens were proposed and accepted.
Answers must be equal with and without, token by token; where the dtype makes a token depend on what is computed with it, pass
--batch-invariant.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when an answer differs.
"""

from __future__ import annotations

import argparse
import heapq
import inspect
import shlex
import statistics
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic_settings import CliApp
from transformers import AutoTokenizer
from triptych_common.model.store import TEXT_MODEL

from benchmarks.engine.local import EngineCore, EngineSettings, LoadedEngine, Request, SamplingParams, SequenceOutput, load_engine
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.harness.targets import describe_load
from benchmarks.report.hold import hold
from benchmarks.report.speculation import speed_up

_CODE: tuple[Callable[..., object], ...] = (
    shlex.quote, statistics.fmean, textwrap.indent, textwrap.dedent, statistics.mode, heapq.nsmallest, textwrap.shorten,
    shlex.split,
)  # fmt: skip
_QUESTIONS = (
    "Why is the sky blue?",
    "Write a short story about a fox and a clock.",
    "What is the difference between a list and a tuple in Python?",
    "Give me a recipe for pancakes.",
    "How do vaccines work?",
    "Plan a weekend in Lisbon.",
    "Explain what a hash table is to a child.",
    "Which books should I read about the history of Rome?",
)


def chats(num_of_each: int) -> dict[str, list[str]]:
    """What the user says, by kind."""
    license_parts = (Path(__file__).parents[1] / "LICENSE").read_text().split("\n\n")
    documents = ["\n\n".join(part.strip() for part in license_parts[index : index + 3]) for index in range(4, 60, 3)]
    code = [inspect.getsource(function) for function in _CODE]
    edit = "Add type hints to this function, change nothing else, and answer with the whole code.\n\n```python\n{}```"
    quote = "Quote this text word for word, from its beginning to its end.\n\n{}"
    return {
        "editing code": [edit.format(each) for each in code[:num_of_each]],
        "quoting a document": [quote.format(each) for each in documents[:num_of_each]],
        "questions": list(_QUESTIONS[:num_of_each]),
    }


class Bench:
    """One engine, of which the drafter is taken away and put back."""

    def __init__(self, loaded: LoadedEngine, args: argparse.Namespace) -> None:
        self._scheduler, self._args = loaded.scheduler, args
        self._tokenizer = AutoTokenizer.from_pretrained(loaded.path)
        self._core = EngineCore(loaded.scheduler, loaded.executor, self._on_outputs)
        self._planner, self._drafter = loaded.scheduler._planner, loaded.scheduler._planner._drafter
        self._answers: dict[str, list[int]] = {}

    def pair(self, texts: list[str], first: int, *, lookup_first: bool) -> dict:
        """The answers to chats that come together, with draft tokens and without. first: number of the first chat, its seed."""
        runs, answers = {}, {}
        for lookup in (lookup_first, not lookup_first):
            runs[lookup], answers[lookup] = self._run(texts, first, lookup=lookup)
        different = sum(answers[True][name] != answers[False][name] for name in answers[True])
        return {"plain": runs[False], "lookup": runs[True], "num_different": different}

    def _run(self, texts: list[str], first: int, *, lookup: bool) -> tuple[dict, dict[str, list[int]]]:
        self._planner._drafter = self._drafter if lookup else None
        scheduler, counts, self._answers = self._scheduler, self._scheduler.statistics, {}
        before = counts.num_draft_tokens, counts.num_accepted_tokens
        scheduler.reset_caches()
        for index, text in enumerate(texts):
            scheduler.add(self._request(first + index, text))
        while len(self._answers) < len(texts):  # the prompts, and the first token of each answer
            self._core.step()
        num_before, started_s = self._num_tokens, time.perf_counter()
        while scheduler.has_work:
            self._core.step()
        figures = {
            "decode_s": time.perf_counter() - started_s,
            "num_tokens": self._num_tokens - num_before,
            "num_draft_tokens": counts.num_draft_tokens - before[0],
            "num_accepted_tokens": counts.num_accepted_tokens - before[1],
        }
        return figures, self._answers

    @property
    def _num_tokens(self) -> int:
        return sum(map(len, self._answers.values()))

    def _on_outputs(self, step: int, outputs: Sequence[SequenceOutput], load: object) -> None:
        for output in outputs:
            self._answers.setdefault(output.request_id, []).extend(output.token_ids)

    def _request(self, number: int, text: str) -> Request:
        chat, args = [{"role": "user", "content": text}], self._args
        prompt = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        ends = frozenset([self._tokenizer.eos_token_id])
        sampling = SamplingParams(args.max_tokens, temperature=args.temperature, seed=number, stop_token_ids=ends)
        return Request(str(number), prompt, sampling)


def run(args: argparse.Namespace) -> dict:
    """Load the engine and measure; returns the results."""
    bench = Bench(load_engine(CliApp.run(EngineSettings, cli_args=["--model", args.model, *args.serve_args])), args)
    described = describe("speculation")
    runs = []
    for concurrency in args.concurrency:
        for name, texts in chats(args.chats).items():
            bench.pair(texts[:concurrency], 0, lookup_first=True)
            for round_ in range(args.rounds):
                pairs = [
                    bench.pair(texts[first : first + concurrency], first, lookup_first=bool((first // concurrency + round_) % 2))
                    for first in range(0, len(texts), concurrency)
                ]
                runs.append({"chats": name, "concurrency": concurrency, "round": round_, "pairs": pairs})
                print(f"{name}, {concurrency} at a time: {speed_up(runs[-1]):.2f}", flush=True)
    return {**described, "load": describe_load(args, "concurrency", "chats", "max_tokens", "temperature", "rounds"), "runs": runs}


def num_different(results: dict) -> int:
    """Answers that are not the same with draft tokens."""
    return sum(pair["num_different"] for run in results["runs"] for pair in run["pairs"])


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1], metavar="N", help="answers at a time")
    parser.add_argument("--chats", type=int, default=8, help="of each kind")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--name", default="speculation", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych engine`")
    args = parser.parse_args()
    check_positive(parser, *args.concurrency, args.chats, args.max_tokens, args.rounds)
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), num_different, args.name)


if __name__ == "__main__":
    main()
