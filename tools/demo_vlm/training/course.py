"""The steps of one training stage: counted, reported, saved, and resumed after an interruption."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .descent import Descent

_REPORT_EVERY = 25


class Course:
    """Iterates over the numbers of the remaining steps.

    Args:
        path: the checkpoint. If it exists, modules and optimizers resume from it.
    """

    def __init__(self, path: Path, descent: Descent, save_every: int, **modules: nn.Module) -> None:
        self._path, self._descent, self._save_every, self._modules = path, descent, save_every, modules
        self._notes: dict[str, list[float]] = defaultdict(list)
        state = load_state(path)
        self._first_step = state.get("step", 0)
        self.is_new = not state
        if state:
            descent.load_state_dict(state["descent"])
            load_modules(state, **modules)

    def __iter__(self) -> Iterator[int]:
        start_s, last_step = time.process_time(), self._first_step
        for done in range(self._first_step + 1, self._descent.num_steps + 1):
            yield done - 1
            is_last = done == self._descent.num_steps
            if done % _REPORT_EVERY == 0 or is_last:
                self._report(done, (time.process_time() - start_s) / (done - last_step))
                start_s, last_step = time.process_time(), done
            if done % self._save_every == 0 or is_last:
                self._save(done)

    def note(self, **figures: float | torch.Tensor) -> None:
        """Figures of this step. Their means are reported regularly."""
        for name, figure in figures.items():
            self._notes[name].append(float(torch.as_tensor(figure).detach()))

    def _report(self, done: int, each_s: float) -> None:
        means = " ".join(f"{name} {sum(values) / len(values):.4f}" for name, values in self._notes.items())
        self._notes.clear()
        print(f"{self._path.stem} {done}/{self._descent.num_steps} {means} {each_s:.2f} CPU s/step", flush=True)

    def _save(self, done: int) -> None:
        """Save atomically, so that an interruption leaves the previous complete checkpoint."""
        states = {name: module.state_dict() for name, module in self._modules.items()}
        new = self._path.with_suffix(".new")
        torch.save({"step": done, "descent": self._descent.state_dict()} | states, new)
        new.replace(self._path)


def load_state(path: Path) -> dict[str, Any]:
    """The saved state of a course; empty if there is none."""
    return torch.load(path) if path.is_file() else {}


def load_modules(state: dict[str, Any], **modules: nn.Module) -> None:
    """Load the weights of the named modules."""
    for name, module in modules.items():
        module.load_state_dict(state[name])
