"""What loading a model adds to the memory of a process, beside its KV cache, compared with the size of its file.

    python -m benchmarks.load_memory MODEL

The engine's executor loads the model in this process, as the service does. Memory is the private memory of the process
(/proc/self/smaps_rollup), before and after. The KV cache is touched completely before it is subtracted.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic_settings import CliApp
from triptych_common.model.store import resolve_model

from benchmarks.engine.local import EngineSettings, load_engine
from benchmarks.harness.sitting import RESULTS, describe, new_parser, write_results

_KV_CACHE_BYTES = 64 << 20


def private_bytes() -> int:
    """Memory that only this process has."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def run(args: argparse.Namespace) -> dict:
    """Load the model and measure; returns the results."""
    path = resolve_model(args.model)
    file_bytes = sum(file.stat().st_size for file in path.iterdir() if file.suffix in (".gguf", ".safetensors"))
    flags = ["--model", args.model, "--kv-cache-memory", str(_KV_CACHE_BYTES), "--max-model-len", "2048", *args.serve_args]
    settings = CliApp.run(EngineSettings, cli_args=flags)
    described, before = describe("load_memory"), private_bytes()
    engine = load_engine(settings)
    model = engine.runner._model
    kv_bytes = sum(shape.bytes_per_token(engine.runner._cache_dtype) for shape in model.layers.values())
    kv_bytes *= engine.runner.config.block_size * engine.runner.num_blocks
    added = private_bytes() - before - kv_bytes
    print(f"loading adds {added / 1e6:.0f} MB, {added / file_bytes:.3f} of the file's {file_bytes / 1e6:.0f} MB")
    figures = {"file_bytes": file_bytes, "kv_cache_bytes": kv_bytes, "added_bytes": added, "of_file": added / file_bytes}
    return {**described, "load": {"model": Path(args.model).name, "serve_args": args.serve_args}, **figures}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("model", help="directory, built-in name or GGUF file")
    parser.add_argument("--name", default="load-memory", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych engine`")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    results = run(args)
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
