"""Training checkpoints: replaced in one move, so that an interruption leaves the last whole one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn


def save_state(path: Path, step: int, optimizer: torch.optim.Optimizer, **modules: nn.Module) -> None:
    """Write modules and optimizer after a number of steps."""
    new = path.with_suffix(".new")
    torch.save(
        {"step": step, "optimizer": optimizer.state_dict()} | {name: module.state_dict() for name, module in modules.items()}, new
    )
    new.replace(path)


def load_state(path: Path) -> dict[str, Any]:
    """What save_state wrote; empty where there is nothing yet."""
    return torch.load(path) if path.is_file() else {}


def report(stage: str, step: int, num_steps: int, recent: list[tuple[float, float]], start_s: float) -> None:
    """Print the means of loss and share of right tokens since start_s, a time of perf_counter."""
    loss, accuracy = (sum(column) / len(recent) for column in zip(*recent, strict=True))
    each_s = (time.perf_counter() - start_s) / len(recent)
    print(f"{stage} {step}/{num_steps} loss {loss:.3f} tokens right {accuracy:.3f} {each_s:.1f} s/step", flush=True)
