"""Serves a GGUF file with llama.cpp's own server as the peer to measure against.

    VENV/bin/python benchmarks/peers/serve_llamacpp.py FILE.gguf PORT SLOTS [CONTEXT_PER_SLOT [THREADS]]

VENV: a virtual environment with `xllamacpp` (`pip install --no-deps xllamacpp`), which is llama.cpp built for AVX2. SLOTS: number
of sequences that are computed at once. It prints llama.cpp's line about the instructions that it uses. It is ready when GET /health
answers.
"""

from __future__ import annotations

import sys
import time

import xllamacpp


def main(file: str, port: str, slots: str, context: str = "512", threads: str = "2") -> None:
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = file, ["127.0.0.1"], int(port)
    params.n_parallel, params.n_ctx = int(slots), int(context) * int(slots)
    params.cont_batching, params.cache_ram_mib = True, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
