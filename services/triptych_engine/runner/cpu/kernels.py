"""Loads and calls the CPU kernels (csrc/). They have a C ABI with plain pointers and depend on neither Python nor libtorch."""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from triptych_common.host.cache import cache_dir
from triptych_common.host.cpu import isas_of_this_cpu

from triptych_engine.runner.cpu import kernel_build
from triptych_engine.runner.cpu.huge_pages import HugePages
from triptych_engine.runner.cpu.kernel_args import STRUCTS, KernelArgs
from triptych_engine.runner.cpu.openmp import share_runtime_of_torch
from triptych_engine.runner.cpu.quant_kernels import QuantKernels
from triptych_engine.runner.cpu.rank_kernels import RankKernels
from triptych_engine.runner.cpu.recurrent_kernels import CpuRecurrentOps
from triptych_engine.runner.cpu.sampling_kernels import SamplingKernels
from triptych_engine.runner.fusion.kernels import RecurrentParts
from triptych_engine.runner.quantization.formats import F8, ON_THE_FLY, QuantizedRows, quantize_rows

log = logging.getLogger(__name__)
#: Weight formats of decoder layers, see linear.h.
FORMATS = ("bf16", "wide", "quant", "quant_fast")
#: How products of many rows with bf16 weights are computed: in float32, or with bfloat16 instructions for vectors or tiles.
LINEAR_METHODS = ("fp32", "dot", "tiles")
#: Dtypes that the attention supports: of queries and keys, of values and the result, of the cache.
ATTENTION_TYPES = (
    (torch.float32, torch.float32, torch.float32),
    (torch.float32, torch.float32, torch.bfloat16),
    (torch.float32, torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.float32, torch.int8),
    (torch.float32, torch.bfloat16, torch.int8),
    (torch.bfloat16, torch.bfloat16, torch.int8),
)
_SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_CACHE_SHORT = _SHORT | {torch.int8: "int8"}


class _Workspace(threading.local):
    """Scratch memory of kernels. Each thread has its own, because several threads may compute at the same time."""

    def __init__(self) -> None:
        self.memory = torch.empty(0)


class CpuKernels:
    """The loaded library. Calls release the GIL and run on torch's OpenMP threads. Thread-safe."""

    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        library.triptych_row_tile.restype = ctypes.c_int32
        library.triptych_args_size.restype = ctypes.c_int64
        if library.triptych_args_size() != ctypes.sizeof(KernelArgs):
            raise AssertionError("KernelArgs does not mirror PagedAttentionArgs")
        self.path = path
        self.row_tile: int = library.triptych_row_tile()
        #: Whether the attention rounds queries to 8 bits, if the cache is in int8.
        self.rounds_queries = bool(library.triptych_rounds_queries())
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._attention, self._rms_norm = {}, {}
        for types in ATTENTION_TYPES:
            self._attention[types] = getattr(
                library, "triptych_paged_attention_" + "_".join(_CACHE_SHORT[dtype] for dtype in types)
            )
        for source in _SHORT:
            for target in _SHORT:
                function = getattr(library, f"triptych_rms_norm_{_SHORT[source]}_{_SHORT[target]}")
                function.argtypes = [pointer, pointer, pointer, count, count, ctypes.c_float]
                self._rms_norm[source, target] = function
        self._silu_mul = {dtype: getattr(library, f"triptych_silu_mul_{name}") for dtype, name in _SHORT.items()}
        for function in self._silu_mul.values():
            function.argtypes = [pointer, pointer, count, count]
        self._add_rms_norm = {dtype: getattr(library, f"triptych_add_rms_norm_{name}") for dtype, name in _SHORT.items()}
        for function in self._add_rms_norm.values():
            function.argtypes = [pointer] * 5 + [count, count, ctypes.c_float]
        self._qk_norm_rope = {dtype: getattr(library, f"triptych_qk_norm_rope_{name}") for dtype, name in _SHORT.items()}
        for function in self._qk_norm_rope.values():
            function.argtypes = [pointer, count, pointer, pointer, ctypes.c_float, pointer, pointer, count, pointer, *[count] * 4]
        self.linear_panel: int = library.triptych_linear_panel()
        self._linear_pack, self._linear = library.triptych_linear_pack, library.triptych_linear
        self._linear_pack.argtypes = [pointer, pointer, count, count]
        self._linear.argtypes = [pointer, count, *[pointer] * 4, *[count] * 3]
        self._linear_wide = library.triptych_linear_wide
        self._linear_wide.argtypes = [pointer, count, *[pointer] * 3, *[count] * 3]
        self._linear_inputs: int = library.triptych_linear_inputs()
        library.triptych_linear_row_words.argtypes, library.triptych_linear_row_words.restype = [count], count
        #: Number of inputs -> 32-bit words of workspace per row of products whose inputs may be rounded.
        self.linear_row_words: Callable[[int], int] = functools.cache(library.triptych_linear_row_words)
        #: Takes a reference to HeadsArgs.
        self.linear_heads = library.triptych_linear_heads
        #: How products of many rows with bf16 weights are computed.
        self.linear_method: str = LINEAR_METHODS[library.triptych_linear_method()]
        for name, struct in STRUCTS.items():
            size = getattr(library, f"triptych_{name}_size")
            size.restype = count
            if size() != ctypes.sizeof(struct):
                raise AssertionError(f"{struct.__name__} does not mirror that of csrc/")
        self._decoder_layers_workspace = {name: getattr(library, f"triptych_decoder_layers_workspace_{name}") for name in FORMATS}
        for function in self._decoder_layers_workspace.values():
            function.restype = count
        self._takes_conv, self._takes_recurrence = library.triptych_conv_takes, library.triptych_recur_takes
        self._takes_conv.argtypes = self._takes_recurrence.argtypes = [count] * 2
        #: Format of the weights -> layers: takes a reference to DecoderStepArgs.
        self.decoder_layers = {name: getattr(library, f"triptych_decoder_layers_{name}") for name in FORMATS}
        #: Format of the weights -> the experts of a mixture: takes a reference to ExpertsArgs; and its words of workspace for each
        #: expert of each token.
        self.experts = {name: getattr(library, f"triptych_experts_{name}") for name in FORMATS}
        self.experts_workspace = {name: getattr(library, f"triptych_experts_workspace_{name}") for name in FORMATS}
        for function in self.experts_workspace.values():
            function.restype = count
        #: Address of int64 [5], to which kernels add nanoseconds of each stage (csrc/stage_clock.h), or None.
        self.stage_ns: int | None = None
        self._workspace = _Workspace()
        self._pages = HugePages()  # memory of packed weights
        self.sampling = SamplingKernels(library)
        self.ranks = RankKernels(library)
        #: For each model one of its own, which keeps the model's weights.
        self.new_recurrent_ops = functools.partial(CpuRecurrentOps, library)
        #: Products with quantised weights, in which a row's result does not depend on the other rows.
        self.quant = QuantKernels(library, self.workspace)
        #: The same without this promise, where the CPU multiplies many rows faster in another way.
        self.quant_fast = QuantKernels(library, self.workspace, fast=True) if library.triptych_quant_has_fast() else self.quant

    def paged_attention(self, args: KernelArgs, types: tuple[torch.dtype, torch.dtype, torch.dtype]) -> None:
        """Compute one layer: write keys and values, then attend. types: one of ATTENTION_TYPES."""
        self._attention[types](ctypes.byref(args))

    def quant_kernels(self, *, batch_invariant: bool) -> QuantKernels:
        """Products with quantised weights: the fastest, or those in which a row's result does not depend on the other rows."""
        return self.quant if batch_invariant else self.quant_fast

    def decoder_layers_workspace(self, layers: ctypes.Array[ctypes.c_void_p], weight_format: str) -> int:
        """Number of 32-bit words of workspace that layers need per row. layers: addresses of their DecoderLayerArgs."""
        return int(self._decoder_layers_workspace[weight_format](layers, ctypes.c_int64(len(layers))))

    def takes_recurrent(self, parts: RecurrentParts) -> bool:
        """Whether the kernels of whole layers compute this."""
        recurrence = parts.recurrence
        takes_recurrence = recurrence is None or self._takes_recurrence(recurrence.key_dim, recurrence.value_dim)
        return bool(takes_recurrence and self._takes_conv(parts.weight.shape[0], parts.weight.shape[1] - 1))

    def workspace(self, num_rows: int, words_per_row: int) -> int:
        """Address of scratch memory for rows of 32-bit words. All layers share it, because a thread runs them one after the other.

        The number of rows is rounded up to a multiple of 16, because products may read beyond the last row.
        """
        num_words = -(-num_rows // 16) * 16 * words_per_row
        if len(self._workspace.memory) < num_words:
            with torch.inference_mode(False):  # it outlives the step in which it is made
                self._workspace.memory = HugePages().empty(num_words, dtype=torch.float32)
        return self._workspace.memory.data_ptr()

    def pack_linear(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack a weight [out, in] bf16 for `linear`: [ceil(out / linear_panel), padded in / 2, linear_panel] int32."""
        weight = weight.contiguous()  # in a variable: it must outlive the call
        out_features, in_features = weight.shape
        panel, inputs = self.linear_panel, self._linear_inputs
        packed = self._pages.empty(-(-out_features // panel), -(-in_features // inputs) * inputs // 2, panel, dtype=torch.int32)
        self._linear_pack(weight.data_ptr(), packed.data_ptr(), out_features, in_features)
        return packed

    def linear(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """x weight^T + bias. x: [rows, in] fp32 with dense rows, rounded to bf16 if `linear_method` is not fp32; bias:
        [panels * linear_panel] fp32, padded; result [rows, out] fp32. Here and in the other products, the result of a row does not
        depend on the number of rows."""
        out = torch.empty(x.shape[0], out_features)
        self._linear(
            x.data_ptr(), x.stride(0), packed.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
            self.workspace(x.shape[0], self.linear_row_words(x.shape[1])), x.shape[0], out_features, x.shape[1],
        )  # fmt: skip
        return out

    def linear_wide(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
        """Like `linear`, but x is never rounded."""
        out = torch.empty(x.shape[0], out_features)
        self._linear_wide(
            x.data_ptr(), x.stride(0), packed.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(), x.shape[0],
            out_features, x.shape[1],
        )  # fmt: skip
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension; x fp32 or bf16, weight fp32, result of `dtype`."""
        x = x.contiguous()
        out = torch.empty(x.shape, dtype=dtype)
        size = weight.shape[0]
        rows = x.numel() // size
        self._rms_norm[x.dtype, dtype](x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, size, eps)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of x (fp32) and `added` (fp32 or bf16) in fp32; and its RMS norm times weight (fp32), in the dtype of `added`.

        x, added: [rows, size], dense.
        """
        total, out = torch.empty_like(x), torch.empty_like(added)
        self._add_rms_norm[added.dtype](
            x.data_ptr(), added.data_ptr(), weight.data_ptr(), total.data_ptr(), out.data_ptr(), *x.shape, eps
        )
        return total, out

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    ) -> torch.Tensor:
        """Queries and keys, normalised if `norms` are given, and rotated (rotary embedding by halves).

        Returns [rows, num_q_heads + num_kv_heads, head_dim], fp32.

        Args:
            qkv: [rows, (num_q_heads + num_kv_heads) * head_dim + ...], fp32 or bf16, dense.
            cos, sin: [rows, rotary_dim] fp32, dense; dimensions of a head beyond rotary_dim are not rotated.
            norms: [head_dim] fp32 weights of the RMS norm of queries and of keys, and its epsilon; None for no norm.
        """
        out = torch.empty(qkv.shape[0], num_q_heads + num_kv_heads, head_dim)
        q_weight, k_weight, eps = norms if norms is not None else (None, None, 0.0)
        self._qk_norm_rope[qkv.dtype](
            qkv.data_ptr(), qkv.shape[1], None if q_weight is None else q_weight.data_ptr(),
            None if k_weight is None else k_weight.data_ptr(), eps, cos.data_ptr(), sin.data_ptr(), cos.shape[1], out.data_ptr(),
            qkv.shape[0], num_q_heads, num_kv_heads, head_dim,
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half over the last dimension; [..., 2 * size] -> [..., size], fp32 or bf16."""
        gate_up = gate_up.contiguous()
        size = gate_up.shape[-1] // 2
        out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype)
        self._silu_mul[gate_up.dtype](gate_up.data_ptr(), out.data_ptr(), gate_up.numel() // (2 * size), size)
        return out


@functools.cache
def load_kernels() -> CpuKernels | None:
    """The best kernels for this CPU, built if necessary; None, with a warning, if none are available.

    Raises:
        StartupError: $TRIPTYCH_CPU_ISA names an instruction set that this CPU does not have.
    """
    share_runtime_of_torch()
    problem: object = f"there are none for {platform.machine()}"
    for isa in isas_of_this_cpu():
        try:
            kernels = _load(isa)
        except OSError as error:
            log.info("no CPU kernels for %s: %s", isa, error)
            problem = error
            continue
        if _multiplies(kernels):
            return kernels
        problem = f"those for {isa} multiply wrongly"
        log.warning("the CPU kernels for %s multiply wrongly on this CPU and are not used", isa)
    log.warning("no CPU kernels (%s); falling back to plain torch, which is several times slower", problem)
    return None


def _load(isa: str) -> CpuKernels:
    if (found := kernel_build.find(isa)) is not None:
        try:
            return CpuKernels(ctypes.CDLL(str(found)), found)
        except OSError as error:  # for example, built by another system that shares the folder
            log.warning("%s does not load and is built again: %s", found, error)
    built = kernel_build.build(isa, cache_dir() / "kernels")
    return CpuKernels(ctypes.CDLL(str(built)), built)


def _multiplies(kernels: CpuKernels) -> bool:
    """Whether products are correct on this CPU. This is tested, because bfloat16 instructions differ between CPUs."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(70, 100, generator=generator).bfloat16()
    packed = kernels.pack_linear(weight)
    for num_rows in (1, 6, 45):  # each may be computed in another way
        x = torch.randn(num_rows, 100, generator=generator).bfloat16().float()
        if not torch.allclose(kernels.linear(x, packed, None, 70), x @ weight.float().T, rtol=1e-3, atol=1e-3):
            return False
    return _multiplies_quantized(kernels.quant, 6) and _multiplies_quantized(kernels.quant_fast, 45)


def _multiplies_quantized(kernels: QuantKernels, num_rows: int) -> bool:
    """Whether products with quantised weights are those of the dequantised weights, up to the rounding of inputs."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(70, 100, generator=generator)
    floats = QuantizedRows(F8, weight.to(torch.float8_e4m3fn).view(torch.uint8), torch.full((70, 1), 0.5))
    for rows in (*(quantize_rows(weight, form) for form in ON_THE_FLY.values()), floats):
        packed, x = kernels.pack(rows.format, 70, 100, [rows]), torch.randn(num_rows, 100, generator=generator)
        expected = x @ rows.dequantize().T
        if not torch.equal(kernels.unpack(packed, torch.arange(70)), rows.dequantize()):
            return False
        if not (kernels.linear(x, packed, None) - expected).norm() < 0.02 * expected.norm():
            return False
    return True
