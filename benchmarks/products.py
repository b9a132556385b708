"""Products with quantised weights beside the same with bfloat16 weights, by turns, for each format and number of rows.

    python -m benchmarks.products
    TRIPTYCH_CPU_ISA=x86-64-v3 python -m benchmarks.products --name products-avx2
    python -m benchmarks.products --formats q4-min q8 --rows 1 64 --shapes 2048x8192

A shape is OUTxIN. Each product has as many copies of its weight as do not fit in a core's caches, as a model's layers have. Told
are the ratio of the times, above 1 where the quantised weight is faster; of one row what it reads in a second, divided by what
copying memory moves (above 1 where the last-level cache holds all copies); and the bytes per weight. Products with bfloat16
weights are those of models in bfloat16: in float32 where the CPU has no instructions for it.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from triptych_common.host.torch_env import set_torch_environment

set_torch_environment()

import torch  # noqa: E402
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels  # noqa: E402
from triptych_engine.runner.quantization.formats import FORMATS, GROUP, QuantFormat, QuantizedRows  # noqa: E402

from benchmarks.errors import BenchmarkError  # noqa: E402
from benchmarks.harness.sitting import describe, new_parser  # noqa: E402
from benchmarks.report.hold import hold  # noqa: E402
from benchmarks.report.products import ratio_of  # noqa: E402

#: Bytes of all copies of a weight.
_BYTES = 96 << 20
#: A measurement takes about so long, in seconds.
_LEAST_S = 0.05
_BY_NAME = {form.name: form for form in FORMATS}
Product = Callable[[int], object]  # with the copy of this number


def any_rows(form: QuantFormat, out_features: int, in_features: int) -> QuantizedRows:
    """Rows of no meaning."""
    blocks, groups = -(-in_features // form.block), -(-in_features // GROUP)
    values = torch.randint(0, 1 << min(form.bits, 7), (out_features, in_features), dtype=torch.uint8)
    scales = torch.full((out_features, blocks), 0.01, dtype=torch.float32 if form.is_float else torch.float16)
    minimums = {"half": scales.half(), "zero": torch.full((out_features, blocks), 7, dtype=torch.uint8)}.get(form.minimum)
    parts = torch.ones(out_features, groups, form.scales, dtype=torch.uint8) if form.scales else None
    if parts is not None and not form.has_minimums:
        parts = parts.to(torch.int8)
    return QuantizedRows(form, values, scales, minimums, parts, parts if form.has_minimums else None)


def seconds(product: Product, copies: int) -> float:
    """Of one call, the median of a few measurements."""
    for copy in range(copies):
        product(copy)
    taken: list[float] = []
    while len(taken) < 5:
        count, started_s = 0, time.perf_counter()
        while count < copies or time.perf_counter() - started_s < _LEAST_S:
            product(count % copies)
            count += 1
        taken.append((time.perf_counter() - started_s) / count)
    return statistics.median(taken)


def copied_bytes_per_s() -> float:
    """Bytes that are read and written per second while a tensor of 512 MB is copied."""
    source = torch.ones(512 << 18)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda _: target.copy_(source), 1)


def measure(kernels: CpuKernels, form: QuantFormat, shape: tuple[int, int], rows: Sequence[int], rounds: int) -> dict:
    """Both products of a shape, by turns."""
    out_features, in_features = shape
    copies = max(2, _BYTES // (2 * out_features * in_features))
    weight = torch.randn(out_features, in_features).bfloat16()
    plain = [kernels.pack_linear(weight) for _ in range(copies)]
    quant, given = kernels.quant_fast, any_rows(form, out_features, in_features)
    packed = [quant.pack(form, out_features, in_features, [given]) for _ in range(copies)]
    times = []
    for num_rows in rows:
        x = torch.randn(num_rows, in_features)
        pairs = []
        for _ in range(rounds):
            bf16_s = seconds(lambda copy, x=x: kernels.linear(x, plain[copy], None, out_features), copies)  # type: ignore[misc]
            pairs.append((bf16_s, seconds(lambda copy, x=x: quant.linear(x, packed[copy], None), copies)))  # type: ignore[misc]
        times.append({"rows": num_rows, "bf16_us": [1e6 * a for a, _ in pairs], "us": [1e6 * b for _, b in pairs]})
    one = {"format": form.name, "shape": list(shape), "nbytes": packed[0].nbytes, "times": times}
    told = " ".join(f"{each['rows']}: {ratio_of(each):.2f}" for each in times)
    print(f"{form.name} {out_features}x{in_features}: {told}", flush=True)
    return one


def run(args: argparse.Namespace) -> dict:
    torch.set_num_threads(args.threads)
    kernels = load_kernels()
    if kernels is None:
        raise BenchmarkError("there are no kernels for this CPU")
    described = describe("products")
    shapes = [(int(out_features), int(in_features)) for out_features, in_features in (shape.split("x") for shape in args.shapes)]
    with torch.inference_mode():
        runs = [measure(kernels, _BY_NAME[name], shape, args.rows, args.rounds) for name in args.formats for shape in shapes]
        copied = copied_bytes_per_s()
    load = {"threads": args.threads, "rounds": args.rounds, "method": kernels.linear_method, "copied_bytes_per_s": copied}
    return {**described, "load": load, "runs": runs}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--formats", nargs="+", default=list(_BY_NAME), choices=list(_BY_NAME))
    parser.add_argument("--shapes", nargs="+", default=["1536x1536", "2048x8192"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 64, 512])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="products")
    args = parser.parse_args()
    hold(lambda: run(args), lambda results: 0, args.name)


if __name__ == "__main__":
    main()
