"""First two stages: the tower learns to see without a language model, some fifty times cheaper than with one."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from .checkpoints import load_state, save_state
from .data import CrowdDataset, SceneDataset, batches
from .facts import SLOTS
from .vision import PretrainingHeads, VisionPart

_BATCH_SIZE = 32
_LEARNING_RATE = 1e-3
_WARMUP_STEPS = 100
_INITIAL_BATCHES = 16
_REPORT_EVERY, _SAVE_EVERY = 25, 100
_SLOTS_WEIGHT, _PATCHES_WEIGHT = 4.0, 1.0


def look(directory: Path, num_steps: int) -> None:
    """The first layers learn what single patches show, from crowds; goes on where an earlier run of the same directory stopped."""
    vision, heads, optimizer, step = _start(directory / "look.pt", None)
    data = batches(CrowdDataset("train", step * _BATCH_SIZE), _BATCH_SIZE)
    if not step:
        vision.initialise(torch.cat([next(data)["pixels"] for _ in range(_INITIAL_BATCHES)]))
    start_s = time.perf_counter()
    while step < num_steps:
        batch = next(data)
        logits = heads.patch_logits(vision.early_features(batch["pixels"]))
        loss = _patch_loss(logits, batch["patches"])
        _descend(optimizer, loss, step, num_steps)
        step += 1
        if step % _REPORT_EVERY == 0:
            each_s, start_s = (time.perf_counter() - start_s) / _REPORT_EVERY, time.perf_counter()
            print(
                f"look {step}/{num_steps} {loss:.3f} {_patch_accuracies(logits, batch['patches'])} {each_s:.1f} s/step", flush=True
            )
        if step % _SAVE_EVERY == 0 or step == num_steps:
            save_state(directory / "look.pt", step, optimizer, vision=vision, heads=heads)


def pretrain(directory: Path, num_steps: int) -> None:
    """All layers learn to gather the facts about a scene; goes on where an earlier run of the same directory stopped."""
    vision, heads, optimizer, step = _start(directory / "pretrain.pt", directory / "look.pt")
    data = batches(SceneDataset("train", step * _BATCH_SIZE), _BATCH_SIZE)
    start_s = time.perf_counter()
    while step < num_steps:
        batch = next(data)
        last, middle = vision.features(batch["pixels"])
        slot_logits, patch_logits = heads.slot_logits(last), heads.patch_logits(middle)
        slot_loss = torch.stack([cross_entropy(logits, batch["facts"][:, i]) for i, logits in enumerate(slot_logits)]).mean()
        loss = _SLOTS_WEIGHT * slot_loss + _PATCHES_WEIGHT * _patch_loss(patch_logits, batch["patches"])
        _descend(optimizer, loss, step, num_steps)
        step += 1
        if step % _REPORT_EVERY == 0:
            each_s, start_s = (time.perf_counter() - start_s) / _REPORT_EVERY, time.perf_counter()
            accuracies = f"{_patch_accuracies(patch_logits, batch['patches'])} {_slot_accuracies(slot_logits, batch['facts'])}"
            print(f"pretrain {step}/{num_steps} {slot_loss:.3f} {accuracies} {each_s:.1f} s/step", flush=True)
        if step % _SAVE_EVERY == 0 or step == num_steps:
            save_state(directory / "pretrain.pt", step, optimizer, vision=vision, heads=heads)


def _start(checkpoint: Path, before: Path | None) -> tuple[VisionPart, PretrainingHeads, torch.optim.Optimizer, int]:
    """From this stage's checkpoint, else with what the stage before has learned, else from nothing."""
    torch.manual_seed(0)
    vision = VisionPart()
    heads = PretrainingHeads(vision.tower.config.hidden_size)
    # The projector is not part of these stages.
    parameters = [*(p for p in vision.tower.parameters() if p.requires_grad), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.03)
    state = load_state(checkpoint)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    learned = state or (load_state(before) if before else {})
    if learned:
        vision.load_state_dict(learned["vision"])
        heads.load_state_dict(learned["heads"])
    return vision, heads, optimizer, state.get("step", 0)


def _descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor, step: int, num_steps: int) -> None:
    """One step: linear warm-up, then half a cosine down to a fiftieth."""
    done = max(0, step - _WARMUP_STEPS) / max(1, num_steps - _WARMUP_STEPS)
    for group in optimizer.param_groups:
        group["lr"] = _LEARNING_RATE * min((step + 1) / _WARMUP_STEPS, 0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()


def _patch_loss(logits: list[torch.Tensor], patches: torch.Tensor) -> torch.Tensor:
    return torch.stack([cross_entropy(each.flatten(0, 1), patches[:, i].flatten()) for i, each in enumerate(logits)]).sum()


def _patch_accuracies(logits: list[torch.Tensor], patches: torch.Tensor) -> str:
    """Right kinds and colours of patches that show something."""
    shown = patches[:, 0] > 0
    kind, colour, position = ((logits[i].argmax(-1) == patches[:, i])[shown].float().mean() for i in (0, 1, 3))
    return f"patch kind {kind:.3f} patch colour {colour:.3f} patch position {position:.3f}"


def _slot_accuracies(logits: list[torch.Tensor], facts: torch.Tensor) -> str:
    """Right answers per attribute, where there is something to say."""
    right: dict[str, list[float]] = {}
    for index, (slot, each) in enumerate(zip(SLOTS, logits, strict=True)):
        said = facts[:, index] > 0
        right.setdefault(slot.attribute, []).extend((each.argmax(-1) == facts[:, index])[said].float().tolist())
    return " ".join(f"{attribute} {sum(values) / max(1, len(values)):.3f}" for attribute, values in right.items())
