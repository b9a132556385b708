"""Third stage: the projector takes up the code. Fourth: tower and projector learn from the language model's answers."""

from __future__ import annotations

import random
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, mse_loss

from .checkpoints import load_state, report, save_state
from .codebook import Codebook
from .data import SceneDataset, batches
from .dialogues import SYSTEM_PROMPTS, choose
from .language import FrozenLanguageModel
from .vision import FIRST_SLOT, PretrainingHeads, VisionPart

_PROJECT_BATCH_SIZE = 32
_PROJECT_LEARNING_RATE = 1e-3
_TOWER_SHARE = 0.3
_ALIGN_BATCH_SIZE = 4
_ALIGN_LEARNING_RATE = 2e-4
_QUESTIONS_PER_SCENE = 8
#: Where the numbers of the scenes of each stage begin: no scene is seen by two stages.
_PROJECT_START, _ALIGN_START = 10_000_000, 20_000_000


def project(directory: Path, num_steps: int) -> None:
    """Regress the code from pictures, the tower still learning to see at a lower rate."""
    vision, codebook = VisionPart(), Codebook()
    heads = PretrainingHeads(vision.tower.config.hidden_size)
    state = load_state(directory / "project.pt") or load_state(directory / "pretrain.pt") | {"step": 0, "optimizer": None}
    vision.load_state_dict(state["vision"])
    heads.load_state_dict(state["heads"])
    codebook.load_state_dict(load_state(directory / "codebook.pt")["codebook"])
    codebook.requires_grad_(False)
    seeing = [*(p for p in vision.tower.parameters() if p.requires_grad), *heads.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": vision.projector.parameters(), "share": 1.0}, {"params": seeing, "share": _TOWER_SHARE}]
    )
    if state["optimizer"]:
        optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    data = batches(SceneDataset("train", _PROJECT_START + step * _PROJECT_BATCH_SIZE), _PROJECT_BATCH_SIZE)
    while step < num_steps:
        for group in optimizer.param_groups:
            group["lr"] = _PROJECT_LEARNING_RATE * group["share"] * min(1.0, (step + 1) / 50, 0.02 + 1.5 * (1 - step / num_steps))
        batch = next(data)
        last, middle = vision.features(batch["pixels"])
        wanted = codebook(batch["facts"])
        # In units of the code's own variance; the free tokens are all alike and learned at once.
        distance = mse_loss(vision.projector(last), wanted) / wanted[:, FIRST_SLOT:].var()
        slot_loss = torch.stack([cross_entropy(o, batch["facts"][:, i]) for i, o in enumerate(heads.slot_logits(last))]).mean()
        patch_loss = sum(
            cross_entropy(o.flatten(0, 1), batch["patches"][:, i].flatten()) for i, o in enumerate(heads.patch_logits(middle))
        )
        optimizer.zero_grad()
        (5 * distance + 4 * slot_loss + 0.3 * patch_loss).backward()
        torch.nn.utils.clip_grad_norm_(seeing, 1.0)
        torch.nn.utils.clip_grad_norm_(vision.projector.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"project {step}/{num_steps} distance {distance.item():.4f} slots {slot_loss.item():.4f}", flush=True)
        if step % 200 == 0 or step == num_steps:
            save_state(directory / "project.pt", step, optimizer, vision=vision, heads=heads)


def align(directory: Path, language_dir: Path, num_steps: int) -> None:
    """Train tower and projector through the frozen language model, on answers alone."""
    language, vision = FrozenLanguageModel(language_dir), VisionPart()
    state = load_state(directory / "align.pt") or load_state(directory / "project.pt") | {"step": 0, "optimizer": None}
    vision.load_state_dict(state["vision"])
    parameters = [p for p in vision.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01)
    if state["optimizer"]:
        optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    data = batches(SceneDataset("train", _ALIGN_START + step * _ALIGN_BATCH_SIZE), _ALIGN_BATCH_SIZE)
    start_s, recent = time.perf_counter(), []
    while step < num_steps:
        for group in optimizer.param_groups:
            group["lr"] = _ALIGN_LEARNING_RATE * min(1.0, (step + 1) / 20, 0.05 + 1.3 * (1 - step / num_steps))
        rng = random.Random(f"align:{step}")
        batch = next(data)
        asked = [choose(every, _QUESTIONS_PER_SCENE, rng) for every in batch["questions"]]
        rows = language.dialogues.build(asked, joined=rng.random() < 0.3)
        opening = rng.choices(range(len(SYSTEM_PROMPTS)), weights=(6, 2, 1))[0]
        loss, accuracy = language.loss(vision(batch["pixels"]), rows, opening)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        recent.append((loss.item(), accuracy))
        if step % 10 == 0 or step == num_steps:
            report("align", step, num_steps, recent, start_s)
            start_s, recent = time.perf_counter(), []
            save_state(directory / "align.pt", step, optimizer, vision=vision)
