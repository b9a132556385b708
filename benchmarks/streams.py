"""What a token costs as concurrent streams grow from one to a thousand, and whether all of them come to their end.

    python -m benchmarks.streams                                       # starts `triptych serve`, measures it, stops it
    python -m benchmarks.streams --concurrency 1 64 --max-tokens 16 --no-fake-engine -- --engine.num-threads 1

The same as benchmarks.serving with other defaults: up to 1,000 streams, short prompts, one request per stream. `triptych serve`
runs with its defaults: requests beyond what the engine computes at once wait, and none is refused. What a request costs at its
begin is in a token's cost.

By turns with it gateway and frontend are measured with a fake in place of the engine that brings 12,000 tokens/s in all
(engine/fake.py): so fast no engine on this machine feeds them. Fewer than one message per token say that one of them fell behind.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a stream was lost.
"""

from __future__ import annotations

from benchmarks.serving import hold_serving, parse_args

DEFAULTS = {
    "concurrency": [1, 8, 64, 250, 1000],
    "max_tokens": 64,
    "prompt_words": 5,
    "requests_per_stream": 1,
    "min_requests": 16,
    "repeats": 1,
    "seed": 1,
    "fake_engine": True,
    "name": "streams",
}

if __name__ == "__main__":
    hold_serving("streams", parse_args(__doc__, **DEFAULTS))
