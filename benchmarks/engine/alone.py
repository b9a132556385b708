"""The same load put straight into the engine's step loop, with no gRPC, no frontend and no gateway around it.

    echo '{"prompts": ["a river"], "concurrency": 1, "max_tokens": 16, "timeout_s": 60}' | python -m benchmarks.engine.alone

benchmarks.serving runs it beside the server, with the flags of the server's own engine, which are those of `triptych engine`. It
reads one JSON object per line from its standard input and answers each with a line `figures: {...}`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from triptych_cli.load.figures import Figures, summarize
from triptych_cli.load.requests import Request

from benchmarks.harness.child import Child
from benchmarks.harness.stack import checkout_env

ENGINE_ALONE = "engine alone"
LOAD_TIMEOUT_S = 300.0
#: The process says by itself when a run takes too long; this much later the parent stops waiting.
_ANSWER_SLACK_S = 10.0


class EngineAlone:
    """Handle on the process, for benchmarks.serving."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def put_load(self, requests: Sequence[Request], concurrency: int, timeout_s: float) -> Figures:
        """As client.put_load, of completions that are all as long; raises BenchmarkError where that would count failures."""
        prompts, max_tokens = [request.body["prompt"] for request in requests], requests[0].body["max_tokens"]
        run = {"prompts": prompts, "concurrency": concurrency, "max_tokens": max_tokens, "timeout_s": timeout_s}
        self._child.send(json.dumps(run))
        return Figures(**json.loads(self._child.wait_for(r"^figures: (.*)", timeout_s + _ANSWER_SLACK_S)[1]))


@contextmanager
def running_engine_alone(engine_args: Sequence[str]) -> Iterator[EngineAlone]:
    """The process, with its model loaded, for the time of the block."""
    with Child([sys.executable, "-m", __name__, *engine_args], checkout_env()) as child:
        child.wait_for("^loaded$", LOAD_TIMEOUT_S)
        yield EngineAlone(child)


def main() -> None:
    """Load the engine, then run one load per line of standard input."""
    from pydantic_settings import CliApp
    from tokenizers import Tokenizer
    from triptych_engine.settings import EngineSettings

    from benchmarks.engine.local import LocalEngine

    engine = LocalEngine(CliApp.run(EngineSettings))
    tokenizer = Tokenizer.from_file(str(engine.path / "tokenizer.json"))
    try:
        print("loaded", flush=True)
        for line in sys.stdin:
            run = json.loads(line)
            run["prompts"] = [encoding.ids for encoding in tokenizer.encode_batch(run["prompts"])]
            started_s = time.perf_counter()
            answers, failures = engine.run(**run)
            figures = summarize(answers, failures, time.perf_counter() - started_s)
            print("figures:", json.dumps(dataclasses.asdict(figures)), flush=True)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
