"""The frozen language model: its loss on an answer, and the gradient of the loss with respect to the image tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from ..dataset.dialogues import SYSTEM_PROMPTS, DialogueBuilder, Rows


class FrozenLanguageModel:
    """SmolLM2 in float32, whose weights never change."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().requires_grad_(False)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.dialogues = DialogueBuilder(self.tokenizer)
        self.embeddings = self.model.get_input_embeddings().weight
        self._openings = [self._compute_opening(prompt) for prompt in SYSTEM_PROMPTS]

    def loss(self, image_tokens: torch.Tensor, rows: Rows, opening: int = 0) -> tuple[torch.Tensor, float]:
        """Cross entropy of the answers, and the share of their tokens that greedy decoding gets right.

        Args:
            image_tokens: [batch, tokens, hidden].
            opening: index of the system prompt in SYSTEM_PROMPTS.
        """
        batch, num_image = image_tokens.shape[:2]
        keys_values = self._openings[opening]
        past = keys_values[0][0].shape[2]
        cache = DynamicCache()
        for layer, (key, value) in enumerate(keys_values):
            cache.update(key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1), layer)
        inputs = torch.cat([image_tokens, self.embeddings[rows.input_ids]], dim=1)
        image_positions = torch.arange(past, past + num_image).expand(batch, -1)
        hidden = self.model.model(
            inputs_embeds=inputs,
            attention_mask=_mask(rows.visible, past, num_image),
            position_ids=torch.cat([image_positions, past + num_image + rows.positions], dim=1),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, num_image:]
        answered = rows.targets >= 0
        logits = self.model.lm_head(hidden[answered])
        targets = rows.targets[answered]
        return cross_entropy(logits, targets), float((logits.argmax(-1) == targets).float().mean())

    @torch.no_grad()
    def _compute_opening(self, system_prompt: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of the tokens before the image, which are the same for every image."""
        ids = torch.tensor([self.dialogues.opening(system_prompt)])
        cache = self.model.model(input_ids=ids, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]


def _mask(visible: torch.Tensor, past: int, num_image: int) -> torch.Tensor:
    """Additive mask [batch, 1, image + row, past + image + row]: all tokens see everything before the rows."""
    batch, length = visible.shape[:2]
    total = num_image + length
    mask = torch.ones(batch, total, past + total, dtype=torch.bool).tril(past)
    mask[:, num_image:, past + num_image :] = visible
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[:, None]
