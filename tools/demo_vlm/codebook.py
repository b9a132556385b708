"""Second stage: a code for facts that the frozen language model understands, learned without pictures.

Each image token that carries a fact is the sum of a vector for the slot, one for the value, and one for the two together. They
begin as the language model's own embeddings of the words and are trained through it until it answers from them. The projector
then has a target for every token of every picture, which costs no pass through the language model.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import torch
from torch import nn

from .checkpoints import load_state, report, save_state
from .dialogues import SYSTEM_PROMPTS, choose
from .facts import ATTRIBUTES, SLOTS, fact_values
from .language import FrozenLanguageModel
from .questions import questions
from .scenes import sample_scene
from .vision import FIRST_SLOT, TEXT_HIDDEN_SIZE

_BATCH_SIZE = 4
_QUESTIONS_PER_SCENE = 8
_LEARNING_RATE = 6e-3
_NOISE = 0.03
_FREE_TOKENS_SAY = (
    "This is a picture of shapes or of a digit. Answer the question in one or two words, such as Red, 3, Left or Yes."
)


class Codebook(nn.Module):
    """Values of all slots [batch, slots] to image tokens [batch, image tokens, hidden]."""

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
        """Begin with the words themselves."""

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


def train_codebook(directory: Path, language_dir: Path, num_steps: int) -> None:
    """Train the code for so many steps; goes on where an earlier run of the same directory stopped."""
    language = FrozenLanguageModel(language_dir)
    codebook = Codebook(language)
    optimizer = torch.optim.Adam(codebook.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98))
    checkpoint = directory / "codebook.pt"
    step = 0
    if state := load_state(checkpoint):
        step = state["step"]
        codebook.load_state_dict(state["codebook"])
        optimizer.load_state_dict(state["optimizer"])
    start_s, recent = time.perf_counter(), []
    while step < num_steps:
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / 20, 0.05 + 1.3 * (1 - step / num_steps))
        rng = random.Random(f"codebook:{step}")
        scenes = [sample_scene(rng) for _ in range(_BATCH_SIZE)]
        rows = language.dialogues.build(
            [choose(questions(scene, rng), _QUESTIONS_PER_SCENE, rng) for scene in scenes], joined=rng.random() < 0.3
        )
        tokens = codebook(torch.tensor([fact_values(scene) for scene in scenes]))
        # What the projector will make of it is not exact.
        tokens = tokens + _NOISE * torch.randn(tokens.shape, generator=torch.Generator().manual_seed(step))
        opening = rng.choices(range(len(SYSTEM_PROMPTS)), weights=(6, 2, 1))[0]
        loss, accuracy = language.loss(tokens, rows, opening)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(codebook.parameters(), 1.0)
        optimizer.step()
        step += 1
        recent.append((loss.item(), accuracy))
        if step % 10 == 0 or step == num_steps:
            report("codebook", step, num_steps, recent, start_s)
            start_s, recent = time.perf_counter(), []
            save_state(checkpoint, step, optimizer, codebook=codebook)
