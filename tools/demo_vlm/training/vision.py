"""The part that is trained: a small SigLIP tower and LLaVA's projector, with heads for pre-training only."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlavaConfig, SiglipVisionConfig, SiglipVisionModel
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from ..dataset.facts import SLOTS
from ..dataset.geometry import GRID, IMAGE_SIZE, PATCH_SIZE
from ..dataset.scenes import COLOURS, DIGITS, SHAPES

TEXT_HIDDEN_SIZE = 576
NUM_IMAGE_TOKENS = GRID**2
#: The image tokens from this one on carry one fact each. Those before it are free.
FIRST_SLOT = NUM_IMAGE_TOKENS - len(SLOTS)
#: After this many layers each patch knows the content of its cell.
NUM_CELL_LAYERS = 3


def vision_config() -> SiglipVisionConfig:
    """The tower's configuration."""
    return SiglipVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        vision_use_head=False,
    )


class VisionPart(nn.Module):
    """From pixels [batch, 3, size, size] to the language model's input, [batch, NUM_IMAGE_TOKENS, TEXT_HIDDEN_SIZE]."""

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

    def cell_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Hidden states after the layers for single cells, [batch, patches, hidden]."""
        return self._run(self.tower.embeddings(pixels), 0, NUM_CELL_LAYERS)

    def fact_features(self, cell_features: torch.Tensor) -> torch.Tensor:
        """Hidden states after all layers, computed from the result of cell_features."""
        return self._run(cell_features, NUM_CELL_LAYERS, len(self.tower.encoder.layers))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.projector(self.fact_features(self.cell_features(pixels)))

    def _run(self, hidden: torch.Tensor, first: int, end: int) -> torch.Tensor:
        for layer in self.tower.encoder.layers[first:end]:
            hidden = layer(hidden, attention_mask=None)
        return hidden


class PretrainingHeads(nn.Module):
    """Predict a fact from each image token, and the content of its cell from each patch."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.slots = nn.ModuleList(nn.Linear(hidden_size, len(slot.values)) for slot in SLOTS)
        self.slot_norm, self.patch_norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.patches = nn.ModuleList(nn.Linear(hidden_size, count) for count in (1 + len(SHAPES) + len(DIGITS), 1 + len(COLOURS)))

    def slot_logits(self, fact_features: torch.Tensor) -> list[torch.Tensor]:
        """For each slot, the logits of its values, [batch, values]."""
        normed = self.slot_norm(fact_features)
        return [head(normed[:, FIRST_SLOT + index]) for index, head in enumerate(self.slots)]

    def patch_logits(self, cell_features: torch.Tensor) -> list[torch.Tensor]:
        """Logits of kind and colour, [batch, patches, classes] each."""
        normed = self.patch_norm(cell_features)
        return [head(normed) for head in self.patches]
