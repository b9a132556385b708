"""The part that is trained: a small SigLIP tower and LLaVA's projector, with heads that only pre-training needs."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlavaConfig, SiglipVisionConfig, SiglipVisionModel
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from .data import GRID, IMAGE_SIZE, PATCH_SIZE
from .facts import SLOTS
from .scenes import COLOURS, DIGITS, SHAPES

TEXT_HIDDEN_SIZE = 576
NUM_IMAGE_TOKENS = GRID**2
#: The image tokens that carry the facts, one each; those before them are free.
FIRST_SLOT = NUM_IMAGE_TOKENS - len(SLOTS)
_DENSE_LAYER = 3


def vision_config() -> SiglipVisionConfig:
    """The tower's configuration."""
    return SiglipVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=3,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        vision_use_head=False,
    )


class VisionPart(nn.Module):
    """Pixels [batch, 3, size, size] to what the language model sees, [batch, NUM_IMAGE_TOKENS, TEXT_HIDDEN_SIZE]."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = SiglipVisionModel._from_config(vision_config(), attn_implementation="sdpa")
        # LLaVA takes the last layer's output before this norm.
        self.tower.post_layernorm.requires_grad_(False)
        self.projector = LlavaMultiModalProjector(
            LlavaConfig(
                vision_config=vision_config(),
                text_config={"model_type": "llama", "hidden_size": TEXT_HIDDEN_SIZE},
                vision_feature_layer=-1,
            )
        )

    def features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The hidden states after the last layer and after the one whose patches are supervised, [batch, patches, hidden] each."""
        hidden = self.tower(pixels, output_hidden_states=True).hidden_states
        return hidden[-1], hidden[_DENSE_LAYER]

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.projector(self.features(pixels)[0])


class PretrainingHeads(nn.Module):
    """Read facts off single image tokens, and off each patch what it shows."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.slots = nn.ModuleList(nn.Linear(hidden_size, len(slot.values)) for slot in SLOTS)
        self.patches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, count))
            for count in (1 + len(SHAPES) + len(DIGITS), 1 + len(COLOURS), 2)
        )
        self.norm = nn.LayerNorm(hidden_size)

    def slot_logits(self, last: torch.Tensor) -> list[torch.Tensor]:
        """For each slot, logits of its values, [batch, values]."""
        last = self.norm(last)
        return [head(last[:, FIRST_SLOT + index]) for index, head in enumerate(self.slots)]

    def patch_logits(self, middle: torch.Tensor) -> list[torch.Tensor]:
        """Logits of kind, colour and centre, [batch, patches, classes] each."""
        return [head(middle) for head in self.patches]
