"""Last stage: tower and projector learn from the language model's answers."""

from __future__ import annotations

import random
from pathlib import Path

from .course import Course, load_modules, load_state
from .data import scene_batch
from .descent import Descent
from .dialogues import SYSTEM_PROMPTS, choose
from .language import FrozenLanguageModel
from .pretrain import new_vision
from .stencils import Stencils

_BATCH_SIZE = 4
_QUESTIONS_PER_SCENE = 8
_SHARE_OF_CONVERSATIONS = 0.2
_RATE = 2e-4
_SAVE_EVERY = 25


def align(directory: Path, stencils: Stencils, language_dir: Path, num_steps: int) -> None:
    """Train tower and projector through the frozen language model, on answers alone."""
    language, (vision, _) = FrozenLanguageModel(language_dir), new_vision()
    descent = Descent({}, {vision: _RATE}, num_steps)
    course = Course(directory / "align.pt", descent, _SAVE_EVERY, vision=vision)
    if course.is_new:
        load_modules(load_state(directory / "project.pt"), vision=vision)
    for step in course:
        batch = scene_batch(stencils, f"train:align:{step}", _BATCH_SIZE)
        rng = random.Random(f"train:align:{step}:questions")
        asked = [choose(every, _QUESTIONS_PER_SCENE, rng) for every in batch.questions]
        rows = language.dialogues.build(asked, joined=rng.random() < _SHARE_OF_CONVERSATIONS)
        opening = rng.choices(range(len(SYSTEM_PROMPTS)), weights=(6, 2, 1))[0]
        loss, accuracy = language.loss(vision(batch.pixels), rows, opening)
        descent.step(loss, step)
        course.note(loss=loss, right=accuracy)
