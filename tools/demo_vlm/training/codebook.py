"""Third stage: a code for facts that the frozen language model understands, learned without images.

Each image token that carries a fact is the sum of three vectors: for the slot, for the value, and for the pair of both. They start
as the language model's own embeddings of the words, and are trained through the model until it answers from them. The projector
then has a target for every token of every image, without a pass through the language model.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import torch
from torch import nn

from ..dataset.dialogues import SYSTEM_PROMPTS, choose
from ..dataset.facts import ATTRIBUTES, SLOTS, fact_values
from ..dataset.questions import questions
from ..dataset.scenes import Scene, sample_scene
from .course import Course
from .descent import Descent
from .language import FrozenLanguageModel
from .vision import FIRST_SLOT, TEXT_HIDDEN_SIZE

_BATCH_SIZE = 4
_QUESTIONS_PER_SCENE = 8
#: Share of rows that are one conversation of many turns. In the other rows the questions do not see each other.
_SHARE_OF_CONVERSATIONS = 0.2
_SHARE_OF_DIGITS = 0.12
_RATE = 6e-3
_NOISE = 0.03
_SAVE_EVERY = 25
_FREE_TOKENS_SAY = (
    "This is a picture of shapes or of a digit. Answer the question in one or two words, such as Red, 3, Left or Yes."
)


class Codebook(nn.Module):
    """From values of all slots [batch, slots] to image tokens [batch, image tokens, hidden]."""

    def __init__(self, language: FrozenLanguageModel | None = None) -> None:
        super().__init__()
        self.free = _zeros(FIRST_SLOT)
        self.slots = _zeros(len(SLOTS))
        self.values = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(len(v), TEXT_HIDDEN_SIZE)) for name, v in ATTRIBUTES.items()}
        )
        self.pairs = nn.ParameterList(nn.Parameter(torch.zeros(len(slot.values), TEXT_HIDDEN_SIZE)) for slot in SLOTS)
        if language is not None:
            self._speak(language)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        facts = [
            self.slots[index] + (self.values[slot.attribute] + self.pairs[index])[values[:, index]]
            for index, slot in enumerate(SLOTS)
        ]
        return torch.cat([self.free.expand(len(values), -1, -1), torch.stack(facts, dim=1)], dim=1)

    @torch.no_grad()
    def _speak(self, language: FrozenLanguageModel) -> None:
        """Initialize from the embeddings of the words."""

        def embed(words: str) -> torch.Tensor:
            return language.embeddings[language.tokenizer.encode(words, add_special_tokens=False)]

        words = embed(_FREE_TOKENS_SAY)
        self.free.copy_(torch.cat([words] * (1 + FIRST_SLOT // len(words)))[:FIRST_SLOT])
        for index, slot in enumerate(SLOTS):
            self.slots[index] = 0.6 * (embed(f" {slot.subject}").mean(0) + embed(f" {slot.attribute}").mean(0))
        for attribute, names in ATTRIBUTES.items():
            for index, name in enumerate(names):
                self.values[attribute][index] = 0.6 * embed(name if name.isdigit() else f" {name}").mean(0)


def _zeros(count: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(count, TEXT_HIDDEN_SIZE))


def _sample_alike(rng: random.Random) -> list[Scene]:
    """Scenes that all show digits, or all shapes. A digit allows fewer questions, and a batch is as long as its longest row."""
    of_digits = rng.random() < _SHARE_OF_DIGITS
    scenes = (sample_scene(rng) for _ in itertools.count())
    return list(itertools.islice((scene for scene in scenes if (scene.digit is not None) == of_digits), _BATCH_SIZE))


def train_codebook(directory: Path, language_dir: Path, num_steps: int) -> None:
    """Train the code through the language model."""
    language = FrozenLanguageModel(language_dir)
    codebook = Codebook(language)
    descent = Descent({}, {codebook: _RATE}, num_steps)
    course = Course(directory / "codebook.pt", descent, _SAVE_EVERY, codebook=codebook)
    for step in course:
        rng = random.Random(f"train:codebook:{step}")
        scenes = _sample_alike(rng)
        rows = language.dialogues.build(
            [choose(questions(scene, rng), _QUESTIONS_PER_SCENE, rng) for scene in scenes],
            joined=rng.random() < _SHARE_OF_CONVERSATIONS,
        )
        tokens = codebook(torch.tensor([fact_values(scene) for scene in scenes]))
        # The projector's output will not be exact, so add noise.
        tokens = tokens + _NOISE * torch.randn(tokens.shape, generator=torch.Generator().manual_seed(step))
        opening = rng.choices(range(len(SYSTEM_PROMPTS)), weights=(6, 2, 1))[0]
        loss, accuracy = language.loss(tokens, rows, opening)
        descent.step(loss, step)
        course.note(loss=loss, right=accuracy)
