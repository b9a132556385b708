"""What embedding traffic costs text generation on the same machine: gaps between the tokens of a stream, with and without it.

    triptych serve qwen2.5-0.5b-instruct --port 8000
    triptych serve all-minilm-l6-v2 --port 8100 ...   # other ports for its services, too
    python -m benchmarks.embeddings.beside --generate http://127.0.0.1:8000 --embed http://127.0.0.1:8100 [--rounds 3]

Both stacks run already. Rounds alternate: a stream alone, then beside a client that sends 256 texts at a time. Prints the median
and the 99th percentile of the gaps, and texts per second.
"""

from __future__ import annotations

import threading
import time

import httpx
import numpy as np

from benchmarks.harness.sitting import new_parser
from benchmarks.harness.texts import texts

_TEXTS, _TOKENS = 256, 200


def _model(url: str) -> str:
    return str(httpx.get(f"{url}/v1/models", trust_env=False).raise_for_status().json()["data"][0]["id"])


def stream_gaps(url: str, model: str) -> np.ndarray:
    """Seconds between the events of a stream, without the time to the first one."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": _TOKENS, "ignore_eos": True, "stream": True}
    times = []
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300, trust_env=False) as response:
        response.raise_for_status()
        times = [time.perf_counter() for line in response.iter_lines() if line.startswith("data: {")]
    return np.diff(times)


class EmbeddingTraffic:
    """Sends texts in a thread, one request after the other, within a `with` block."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._body = url, {"model": model, "input": texts(_TEXTS, 5, 25), "encoding_format": "base64"}
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._failure: Exception | None = None
        self.rate = 0.0

    def __enter__(self) -> EmbeddingTraffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _send(self) -> None:
        count, started = 0, time.perf_counter()
        try:
            with httpx.Client(timeout=300, trust_env=False) as client:
                while not self._stops.is_set():
                    client.post(f"{self._url}/v1/embeddings", json=self._body).raise_for_status()
                    count += _TEXTS
        except httpx.HTTPError as error:
            self._failure = error
        self.rate = count / (time.perf_counter() - started)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--generate", required=True, metavar="URL", help="a stack that generates text")
    parser.add_argument("--embed", required=True, metavar="URL", help="a stack that embeds")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    args = parser.parse_args()
    writer, embedder = _model(args.generate), _model(args.embed)
    stream_gaps(args.generate, writer)  # warms it up
    for _ in range(args.rounds):
        _print("alone", stream_gaps(args.generate, writer))
        with EmbeddingTraffic(args.embed, embedder) as traffic:
            gaps = stream_gaps(args.generate, writer)
        _print("beside", gaps, f", {traffic.rate:.0f} texts/s")


def _print(name: str, gaps: np.ndarray, more: str = "") -> None:
    median, slow, longest = np.percentile(gaps * 1e3, [50, 99, 100])
    print(f"{name:7s} gaps in ms: median {median:.1f}, 99th percentile {slow:.1f}, longest {longest:.1f}{more}", flush=True)


if __name__ == "__main__":
    main()
