"""Real processes that compute a model together, and what each of them has of it."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from triptych_common.host.memory import private_memory
from triptych_engine.runner import builder
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.model.loader import LoadedModel
from triptych_engine.runner.place import Place

_TIMEOUT_S, _GRACE_S = 120.0, 5.0


@dataclass(frozen=True)
class Computed:
    """What a rank reports of a model.

    Attributes:
        logits: [num_tokens, vocab_size] of a prompt that is computed in two steps.
        last_logits: [1, vocab_size] of its last token, in one step of which nothing else is wanted.
        num_weights: numbers of the model that the rank has read.
        peak_bytes: most memory, besides files, that its process had while it loaded; and how much it had before.
        keeps_latents: whether its KV cache has latents.
    """

    logits: torch.Tensor
    last_logits: torch.Tensor
    num_weights: int
    peak_bytes: tuple[int, int]
    keeps_latents: bool


class Ranks:
    """Starts the processes once, for several models. They share memory unless it is said that they must not."""

    def __init__(self, size: int, *, shares_memory: bool = True) -> None:
        self._size, self._shares_memory = size, shares_memory
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._folders = contextlib.ExitStack()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        folder = self._folders.enter_context(tempfile.TemporaryDirectory(prefix="ranks-"))
        for rank in range(self._size):
            place = Place(rank, self._size, str(Path(folder, "rendezvous")))
            ours, theirs = context.Pipe()
            memory = str(Path(folder, "memory")) if self._shares_memory else ""
            process = context.Process(target=_serve, args=(place, memory, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def compute(self, config: RunnerConfig, prompt: list[int]) -> list[Computed]:
        """Load a model in all processes. The first error of a rank is raised."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((config, prompt))
        results: dict[int, Any] = {}
        errors: list[Exception] = []
        while len(results) < self._size:
            ready = wait([pipe for rank, pipe in enumerate(self._pipes) if rank not in results], _GRACE_S if errors else _TIMEOUT_S)
            if not ready:  # they wait for each other
                self.close()
                break
            results |= {rank: pipe.recv() for rank, pipe in enumerate(self._pipes) if pipe in ready}
            errors = [one for one in results.values() if isinstance(one, Exception)]
        if errors:
            raise errors[0]
        return [results[rank] for rank in range(self._size)]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []
        self._folders.close()


def _serve(place: Place, memory: str, pipe: Connection) -> None:
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    if memory:
        place = replace(place, shared_memory=os.open(memory, os.O_RDWR | os.O_CREAT, 0o600))
    while True:
        try:
            config, prompt = pipe.recv()
        except EOFError:
            return
        try:
            answer: Any = compute(replace(config, place=place), prompt)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = error
        pipe.send_bytes(pickle.dumps(answer))  # not `send`: of a tensor it would send where it is, through a socket in a file


def compute(config: RunnerConfig, prompt: list[int]) -> Computed:
    """What this process reports."""
    counted: list[int] = []
    load_model = builder.load_model

    def counting(*args: Any, **options: Any) -> LoadedModel:
        loaded = load_model(*args, **options)
        counted.append(sum({one.data_ptr(): one.numel() for one in loaded.model.parameters()}.values()))
        return loaded

    with Peak() as peak, mock.patch.object(builder, "load_model", counting):
        runner = builder.build_runner(config)
    keeps_latents = any(shape.values_in_keys for shape in runner._model.layers.values())
    logits, forward = runner.prompt_logits(prompt, num_chunks=2), runner._forward
    last = np.array([len(prompt) - 1])
    with mock.patch.object(runner, "_forward", lambda inputs, _, *args, **to: forward(inputs, last, *args, **to)):
        last_logits = runner.prompt_logits(prompt)
    return Computed(logits, last_logits, counted[0], (peak.bytes, peak.before), keeps_latents)


class Peak:
    """The most memory besides files that this process has meanwhile, in bytes."""

    def __enter__(self) -> Peak:
        self.before = self.bytes = private_memory()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ends.is_set():
            self.bytes = max(self.bytes, private_memory())
            time.sleep(0.002)

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()
