"""How much memory the services of a model may take, and how models share what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych_common.host.cpu import computes_bfloat16
from triptych_common.host.gpus import num_nvidia_gpus
from triptych_common.model.store import read_json, text_config

from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import ENCODER_BYTES, PROCESS_BYTES, setting
from triptych_cli.stack.service_flags import ServiceArgs

#: An engine or encoder without its model, in bytes. Of an engine with it: the workspace of steps, and the least KV cache of use.
_IDLE_BYTES, _WORK_BYTES = 600 << 20, 1 << 30
#: What weights take in memory, as a multiple of their files: layouts of the kernels are padded.
_WEIGHTS_FACTOR = 1.25


@dataclass(frozen=True)
class Needs:
    """What the services of one model take, in bytes."""

    #: Whether they sleep or not.
    asleep: int
    #: At least, while they are awake.
    least: int

    @classmethod
    def of(cls, path: Path, options: ServeOptions, given: ServiceArgs, *, with_encoder: bool) -> Needs:
        """The needs of the model in this directory."""
        weights = _weight_bytes(path)
        encoders = options.encoders if with_encoder else 0
        encoder_cache = int(setting("encoder", "cache_memory", options, given) or 0)
        kv_cache = int(setting("engine", "kv_cache_memory", options, given) or 0)
        asleep = PROCESS_BYTES * options.frontends + _IDLE_BYTES * (options.engines + encoders)
        awake = options.engines * (weights + _WORK_BYTES + kv_cache) + encoders * (ENCODER_BYTES - _IDLE_BYTES + encoder_cache)
        return cls(asleep, asleep + awake)


def _weight_bytes(path: Path) -> int:
    """What the weights in a directory take in memory."""
    config = text_config(read_json(path / "config.json"))
    is_wide = (config.get("dtype") or config.get("torch_dtype")) == "float32"
    # A CPU without instructions for the checkpoint's dtype computes in float32.
    factor = _WEIGHTS_FACTOR if is_wide or num_nvidia_gpus() or computes_bfloat16() else 2 * _WEIGHTS_FACTOR
    return int(factor * sum(file.stat().st_size for file in path.glob("*.safetensors")))


def shares(budget: int, needs: Sequence[Needs]) -> list[int]:
    """What each model may take while it is awake, in bytes.

    If there is memory for all of them, each gets its part of what is left. Otherwise they take turns, and none gets more than it
    needs.
    """
    left = budget - PROCESS_BYTES - sum(need.least for need in needs)
    return [need.least + max(0, left) // len(needs) for need in needs]
