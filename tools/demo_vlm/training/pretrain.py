"""First two stages: the tower is trained without a language model, which is about fifty times cheaper than with one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from ..dataset.batches import crowd_batch, drawn_batch, scene_batch
from ..dataset.facts import SLOTS
from ..dataset.stencils import Stencils
from .beginnings import begin
from .course import Course, load_modules, load_state
from .descent import Descent
from .vision import PretrainingHeads, VisionPart

_LOOK_BATCH_SIZE, _BATCH_SIZE = 64, 64
#: Crowds in addition to a batch of scenes, so that the knowledge of single items is not lost.
_NUM_CROWDS = 16
_NUM_PICTURES_AT_BEGIN = 256
_RATE = 2e-3
_SAVE_EVERY = 100
_SLOTS_WEIGHT = 4.0
_NUM_EXAMINED = 100


def look(directory: Path, stencils: Stencils, num_steps: int) -> None:
    """Train the first layers to recognize the content of single cells."""
    vision, heads = new_vision()
    descent = Descent({vision.tower: _RATE}, {heads: _RATE}, num_steps)
    course = Course(directory / "look.pt", descent, _SAVE_EVERY, vision=vision, heads=heads)
    if course.is_new:
        begin(vision, crowd_batch(stencils, "train:begin", _NUM_PICTURES_AT_BEGIN).pixels)
    for step in course:
        batch = crowd_batch(stencils, f"train:look:{step}", _LOOK_BATCH_SIZE)
        loss = _patch_loss(heads.patch_logits(vision.cell_features(batch.pixels)), batch.patches)
        descent.step(loss, step)
        course.note(loss=loss)
    examine("look", vision, heads)


def pretrain(directory: Path, stencils: Stencils, num_steps: int) -> None:
    """Train all layers to gather the facts about a scene."""
    vision, heads = new_vision()
    descent = Descent({vision.tower: _RATE}, {heads: _RATE}, num_steps)
    course = Course(directory / "pretrain.pt", descent, _SAVE_EVERY, vision=vision, heads=heads)
    if course.is_new:
        load_modules(load_state(directory / "look.pt"), vision=vision, heads=heads)
    for step in course:
        scenes = scene_batch(stencils, f"train:pretrain:{step}", _BATCH_SIZE)
        crowds = crowd_batch(stencils, f"train:pretrain:{step}:crowds", _NUM_CROWDS)
        cells = vision.cell_features(torch.cat([scenes.pixels, crowds.pixels]))
        patches = _patch_loss(heads.patch_logits(cells), torch.cat([scenes.patches, crowds.patches]))
        slots = slot_loss(heads.slot_logits(vision.fact_features(cells[:_BATCH_SIZE])), scenes.facts)
        descent.step(_SLOTS_WEIGHT * slots + patches, step)
        course.note(slots=slots, patches=patches)
    examine("pretrain", vision, heads)


def new_vision() -> tuple[VisionPart, PretrainingHeads]:
    """New modules, always with the same initial weights."""
    torch.manual_seed(0)
    vision = VisionPart()
    return vision, PretrainingHeads(vision.tower.config.hidden_size)


def slot_loss(logits: list[torch.Tensor], facts: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of all slots' values."""
    return torch.stack([cross_entropy(each, facts[:, i]) for i, each in enumerate(logits)]).mean()


@torch.inference_mode()
def examine(stage: str, vision: VisionPart, heads: PretrainingHeads) -> None:
    """Print the heads' accuracy on images that are drawn, not composed from stencils."""
    batch = drawn_batch("val", _NUM_EXAMINED)
    cells = vision.cell_features(batch.pixels)
    shown = batch.patches[:, 0] > 0
    kind, colour = ((o.argmax(-1) == batch.patches[:, i])[shown].float().mean() for i, o in enumerate(heads.patch_logits(cells)))
    slots = _slot_accuracies(heads.slot_logits(vision.fact_features(cells)), batch.facts)
    print(f"{stage}: right in drawn pictures: kind of patch {kind:.3f}, colour of patch {colour:.3f}, {slots}", flush=True)


def _patch_loss(logits: list[torch.Tensor], patches: torch.Tensor) -> torch.Tensor:
    return torch.stack([cross_entropy(each.flatten(0, 1), patches[:, i].flatten()) for i, each in enumerate(logits)]).sum()


def _slot_accuracies(logits: list[torch.Tensor], facts: torch.Tensor) -> str:
    """Accuracy per attribute, over slots with a value."""
    right: dict[str, list[float]] = {}
    for index, (slot, each) in enumerate(zip(SLOTS, logits, strict=True)):
        said = facts[:, index] > 0
        right.setdefault(slot.attribute, []).extend((each.argmax(-1) == facts[:, index])[said].float().tolist())
    return ", ".join(f"{attribute} {sum(values) / max(1, len(values)):.3f}" for attribute, values in right.items())
