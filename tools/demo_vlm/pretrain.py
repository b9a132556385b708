"""First stage: the tower learns to see, without a language model, which makes it some fifty times cheaper than the last stage."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from .checkpoints import load_state, save_state
from .data import batches
from .facts import SLOTS
from .vision import PretrainingHeads, VisionPart

_BATCH_SIZE = 32
_LEARNING_RATE = 1e-3
_WARMUP_STEPS = 200
_CHECKPOINT_EVERY = 250
_PATCH_WEIGHTS = (1.0, 1.0, 1.0)


def pretrain(directory: Path, num_steps: int) -> None:
    """Train tower and heads for so many steps; goes on where an earlier run of the same directory stopped."""
    torch.manual_seed(0)
    vision = VisionPart()
    heads = PretrainingHeads(vision.tower.config.hidden_size)
    # The projector is not part of this stage.
    parameters = [*(p for p in vision.tower.parameters() if p.requires_grad), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.03)
    checkpoint = directory / "pretrain.pt"
    step = 0
    if state := load_state(checkpoint):
        step = state["step"]
        vision.load_state_dict(state["vision"])
        heads.load_state_dict(state["heads"])
        optimizer.load_state_dict(state["optimizer"])
    data = batches("train", step * _BATCH_SIZE, _BATCH_SIZE)
    start_s, seen = time.perf_counter(), 0
    while step < num_steps:
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * _schedule(step, num_steps)
        batch = next(data)
        last, middle = vision.features(batch["pixels"])
        slot_logits, patch_logits = heads.slot_logits(last), heads.patch_logits(middle)
        slot_loss = torch.stack([cross_entropy(logits, batch["facts"][:, i]) for i, logits in enumerate(slot_logits)]).sum() / 8
        patch_loss = sum(
            weight * cross_entropy(logits.flatten(0, 1), batch["patches"][:, i].flatten())
            for i, (weight, logits) in enumerate(zip(_PATCH_WEIGHTS, patch_logits, strict=True))
        )
        optimizer.zero_grad()
        (slot_loss + patch_loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step, seen = step + 1, seen + _BATCH_SIZE
        if step % 50 == 0:
            rate = seen / (time.perf_counter() - start_s)
            losses = f"slots {slot_loss:.3f} patches {patch_loss:.3f}"
            print(
                f"pretrain {step}/{num_steps} {losses} {_accuracies(slot_logits, batch['facts'])} {rate:.0f} images/s", flush=True
            )
        if step % _CHECKPOINT_EVERY == 0 or step == num_steps:
            save_state(checkpoint, step, optimizer, vision=vision, heads=heads)


def _schedule(step: int, num_steps: int) -> float:
    """Linear warm-up, then half a cosine down to a fiftieth."""
    if step < _WARMUP_STEPS:
        return (step + 1) / _WARMUP_STEPS
    done = (step - _WARMUP_STEPS) / max(1, num_steps - _WARMUP_STEPS)
    return 0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2


def _accuracies(slot_logits: list[torch.Tensor], facts: torch.Tensor) -> str:
    """Right answers per attribute, where there is something to say."""
    right: dict[str, list[float]] = {}
    for index, (slot, logits) in enumerate(zip(SLOTS, slot_logits, strict=True)):
        said = facts[:, index] > 0
        right.setdefault(slot.attribute, []).extend((logits.argmax(-1) == facts[:, index])[said].float().tolist())
    return " ".join(f"{attribute} {sum(values) / max(1, len(values)):.3f}" for attribute, values in right.items())
