"""The NVIDIA GPUs of this machine, for processes without torch."""

from __future__ import annotations

import os
from pathlib import Path

#: Share of a GPU's memory that engines take by default. The rest is for activations, and for an encoder on the same GPU.
GPU_UTILIZATION = 0.8


def num_nvidia_gpus(devices: Path = Path("/dev")) -> int:
    """How many GPUs a process that is started here would see."""
    num_gpus = len([*devices.glob("nvidia[0-9]*")])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    return min(num_gpus, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
