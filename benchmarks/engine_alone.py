"""The same load put straight into the engine's step loop, with no gRPC, no frontend and no gateway around it.

    echo '{"prompts": ["a river", "the sea"], "concurrency": 2, "max_tokens": 16}' | python benchmarks/engine_alone.py

benchmarks/serving.py runs it beside the server, with the flags of the server's own engine, and loads only one of them at a time.
Its flags are those of `triptych engine`. It reads one JSON object per line from its standard input and answers each with a line
`figures: {...}`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from child import Child
from figures import Figures, Stream, summarize

if TYPE_CHECKING:
    from triptych_engine.core import EngineCore, Load
    from triptych_engine.scheduling.output import SequenceOutput
    from triptych_engine.settings import EngineSettings

LOAD_TIMEOUT_S = 300.0
#: The process says by itself when a run takes too long; this much later the parent stops waiting.
_ANSWER_SLACK_S = 10.0


class EngineAlone:
    """Handle on the process, for benchmarks/serving.py."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def put_load(self, prompts: Sequence[str], concurrency: int, max_tokens: int, timeout_s: float) -> Figures:
        """As load.put_load; raises ChildError where that would count failures."""
        run = {"prompts": prompts, "concurrency": concurrency, "max_tokens": max_tokens, "timeout_s": timeout_s}
        self._child.send(json.dumps(run))
        return Figures(**json.loads(self._child.wait_for(r"^figures: (.*)", timeout_s + _ANSWER_SLACK_S)[1]))


@contextmanager
def running_engine_alone(engine_args: Sequence[str]) -> Iterator[EngineAlone]:
    """The process, with its model loaded, for the time of the block."""
    with Child([sys.executable, __file__, *engine_args], os.environ) as child:
        child.wait_for("^loaded$", LOAD_TIMEOUT_S)
        yield EngineAlone(child)


class _ClosedLoop:
    """Keeps so many requests in the engine until all prompts are through. Its callback runs on the engine's thread."""

    def __init__(self, core: EngineCore, prompts: Sequence[list[int]], max_tokens: int) -> None:
        self._core = core
        self._waiting = iter(enumerate(prompts))
        self._max_tokens = max_tokens
        self._num_left = len(prompts)
        self._added_s: dict[str, float] = {}
        self._tokens_s: dict[str, list[float]] = {}
        self._streams: list[Stream] = []
        self._failures: list[str] = []
        self._done = threading.Event()

    def run(self, concurrency: int, timeout_s: float) -> Figures:
        """Raises TimeoutError."""
        start_s = time.perf_counter()
        for _ in range(concurrency):
            self._add_next()
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"{self._num_left} requests are not answered after {timeout_s:.0f} s")
        return summarize(self._streams, self._failures, time.perf_counter() - start_s)

    def on_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        now_s = time.perf_counter()
        for output in outputs:
            if output.token_ids:
                self._tokens_s[output.request_id].append(now_s)
            if output.finish_reason is not None:
                self._end(output)
                self._add_next()

    def _add_next(self) -> None:
        from triptych_engine.scheduling.request import Request, SamplingParams

        index, prompt = next(self._waiting, (0, None))
        if prompt is None:
            return
        request_id = f"{id(self):x}-{index}"
        self._added_s[request_id], self._tokens_s[request_id] = time.perf_counter(), []
        self._core.add(Request(request_id, prompt, SamplingParams(max_tokens=self._max_tokens, temperature=0.0)))

    def _end(self, output: SequenceOutput) -> None:
        times_s = self._tokens_s.pop(output.request_id)
        added_s = self._added_s.pop(output.request_id)
        if output.error is not None or output.usage is None or output.usage[1] != self._max_tokens:
            self._failures.append(f"ended with {output.finish_reason}: {output.error}")
        else:
            num_prompt_tokens, num_output_tokens, _ = output.usage
            self._streams.append(Stream.of_times(added_s, times_s, num_prompt_tokens, num_output_tokens))
        self._num_left -= 1
        if not self._num_left:
            self._done.set()


class _Engine:
    """Model, scheduler and step loop in this process."""

    def __init__(self, settings: EngineSettings) -> None:
        from engine import load_engine
        from tokenizers import Tokenizer
        from triptych_engine.core import EngineCore, new_device_thread

        device_thread = new_device_thread()
        loaded = load_engine(settings, lambda work: device_thread.submit(work).result(LOAD_TIMEOUT_S))
        self._tokenizer = Tokenizer.from_file(str(loaded.path / "tokenizer.json"))
        self._loop: _ClosedLoop | None = None
        self._core = EngineCore(loaded.scheduler, loaded.executor, self._on_outputs, device_thread=device_thread)
        self._core.start()

    def run(self, prompts: Sequence[str], concurrency: int, max_tokens: int, timeout_s: float = 600.0) -> Figures:
        token_ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(prompts))]
        self._loop = _ClosedLoop(self._core, token_ids, max_tokens)
        return self._loop.run(concurrency, timeout_s)

    def stop(self) -> None:
        self._core.stop()

    def _on_outputs(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        if self._loop is not None:
            self._loop.on_outputs(outputs)


def main() -> None:
    """Load the engine, then run one load per line of standard input."""
    from pydantic_settings import CliApp
    from triptych_engine.settings import EngineSettings

    engine = _Engine(CliApp.run(EngineSettings))
    try:
        print("loaded", flush=True)
        for line in sys.stdin:
            print("figures:", json.dumps(dataclasses.asdict(engine.run(**json.loads(line)))), flush=True)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
