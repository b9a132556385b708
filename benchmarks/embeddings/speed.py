"""Texts per second of an embedding model: this engine's steps, and sentence-transformers, by turns on the same cores.

    python -m benchmarks.embeddings.speed [--model NAME] [--texts 512] [--rounds 5]

Both get texts, so both tokenize. The engine runs its scheduler and executor in this process, without gRPC. Prints texts per second
of both, and the ratio of each round: above 1 the engine is faster. Largest difference: of any number of any vector.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from triptych_common.host.cores import num_usable_cores
from triptych_common.host.torch_env import set_torch_environment

set_torch_environment()  # as the engine does before torch is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from triptych_common.model.pooling import served_model  # noqa: E402
from triptych_common.model.store import EMBEDDING_MODEL, resolve_model  # noqa: E402
from triptych_engine.assembly import make_scheduler  # noqa: E402
from triptych_engine.core import EngineCore  # noqa: E402
from triptych_engine.executor.in_process import InProcessExecutor  # noqa: E402
from triptych_engine.runner.config import runner_config  # noqa: E402
from triptych_engine.scheduling.output import SequenceOutput  # noqa: E402
from triptych_engine.scheduling.request import PoolingParams, Request, SamplingParams  # noqa: E402
from triptych_engine.settings import EngineSettings  # noqa: E402

from benchmarks.harness.machine import BusyMeter  # noqa: E402
from benchmarks.harness.sitting import new_parser  # noqa: E402
from benchmarks.harness.texts import texts  # noqa: E402

#: Name -> fewest and most words of a text.
_LENGTHS = {"sentences": (5, 25), "paragraphs": (30, 150)}


class Engine:
    """The engine's scheduler and executor with an embedding model."""

    def __init__(self, path: Path) -> None:
        settings = EngineSettings(model=str(path), max_waiting=1 << 20)
        info, pooling = served_model(path, "model", None, "embed")
        config = runner_config(settings, info, path, pooling)
        self._executor = InProcessExecutor(config)
        self._scheduler = make_scheduler(settings, self._executor.load(), info.max_model_len, generates=False)

    def embed(self, prompts: list[list[int]]) -> np.ndarray:
        """[n, size] of prompts that arrive together."""
        outputs: list[SequenceOutput] = []
        core = EngineCore(self._scheduler, self._executor, lambda step, some, load: outputs.extend(some))
        for index, prompt in enumerate(prompts):
            self._scheduler.add(Request(str(index), prompt, SamplingParams(max_tokens=0), pooling=PoolingParams()))
        while self._scheduler.has_work:
            core.step()
        pooled = {output.request_id: output.pooled for output in outputs}
        return np.stack([pooled[str(index)] for index in range(len(prompts))])  # type: ignore[misc]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=EMBEDDING_MODEL, metavar="NAME")
    parser.add_argument("--texts", type=int, default=512, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    args = parser.parse_args()
    path = resolve_model(args.model)
    torch.set_num_threads(num_usable_cores())
    engine, peer = Engine(path), SentenceTransformer(str(path), device="cpu")
    meter = BusyMeter(())
    time.sleep(2)
    print(f"with nothing under load the cores are {meter.percent()['all']:.0f} % busy", flush=True)
    for name, (fewest, most) in _LENGTHS.items():
        some, ratios = texts(args.texts, fewest, most), []
        for number in range(args.rounds + 1):
            started = time.perf_counter()
            ours = engine.embed([one.ids for one in _encode(peer, some)])
            between = time.perf_counter()
            theirs = peer.encode(some, show_progress_bar=False)
            ended = time.perf_counter()
            if number:  # the first round warms both up
                ratios.append((ended - between) / (between - started))
                rates = args.texts / (between - started), args.texts / (ended - between)
                print(f"{name:12s} {rates[0]:8.0f} texts/s, sentence-transformers {rates[1]:8.0f}: {ratios[-1]:.2f}", flush=True)
        print(
            f"{name:12s} median {statistics.median(ratios):.2f}, largest difference {np.abs(ours - theirs).max():.1e}", flush=True
        )


def _encode(peer: SentenceTransformer, some: list[str]) -> list:
    backend = peer.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(peer.max_seq_length)
    return backend.encode_batch_fast(some)


if __name__ == "__main__":
    main()
