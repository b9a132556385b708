"""The part that is trained: a small SigLIP tower and LLaVA's projector, with heads that only pre-training needs."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlavaConfig, SiglipVisionConfig, SiglipVisionModel
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from .data import GRID, IMAGE_SIZE, PATCH_SIZE
from .facts import SLOTS
from .scenes import COLOURS, DIGITS, POSITIONS, SHAPES

TEXT_HIDDEN_SIZE = 576
NUM_IMAGE_TOKENS = GRID**2
#: The image tokens that carry the facts, one each; those before them are free.
FIRST_SLOT = NUM_IMAGE_TOKENS - len(SLOTS)
_DENSE_LAYER = 3
_SMALLEST_VARIANCE = 1e-2


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

    @torch.no_grad()
    def initialise(self, pixels: torch.Tensor) -> None:
        """Begin where learning is quick, which for a transformer with few pictures makes most of the difference.

        Patches are embedded as their whitened principal components, positions as sines and cosines, and attention looks at what is
        alike and near (Trockman and Kolter, Mimetic Initialization of Self-Attention Layers, 2023).

        Args:
            pixels: some pictures, [batch, 3, size, size].
        """
        embedding = self.tower.embeddings.patch_embedding
        patches = torch.nn.functional.unfold(pixels, PATCH_SIZE, stride=PATCH_SIZE).transpose(1, 2).flatten(0, 1)
        mean, variances, directions = _principal_components(patches, embedding.out_channels)
        # The last components are hardly more than noise: they are not blown up to the size of the first.
        whitened = directions / (variances + _SMALLEST_VARIANCE).sqrt()[:, None]
        embedding.weight.copy_(whitened.view_as(embedding.weight))
        embedding.bias.copy_(-whitened @ mean)
        self.tower.embeddings.position_embedding.weight.copy_(_sines(GRID, embedding.out_channels))
        for layer in self.tower.encoder.layers[:_DENSE_LAYER]:
            _look_at_the_alike(layer.self_attn)

    def features(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The hidden states after the last layer and after the one whose patches are supervised, [batch, patches, hidden] each."""
        hidden = self.tower(pixels, output_hidden_states=True).hidden_states
        return hidden[-1], hidden[_DENSE_LAYER]

    def early_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """The second of features alone, for half the work."""
        hidden = self.tower.embeddings(pixels)
        for layer in self.tower.encoder.layers[:_DENSE_LAYER]:
            hidden = layer(hidden, attention_mask=None)
        return hidden

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.projector(self.features(pixels)[0])


def _principal_components(patches: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean [values], and of the largest components the variances [count] and directions [count, values]."""
    mean = patches.mean(0)
    centred = patches - mean
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(patches))
    return mean, variances[-count:].flip(0).clamp_min(0), directions[:, -count:].flip(1).T


def _sines(grid: int, size: int) -> torch.Tensor:
    """Sines and cosines of row and column in size / 4 wavelengths, [grid * grid, size]."""
    places = torch.arange(grid, dtype=torch.float32)
    angles = places[:, None] / 100 ** (torch.arange(size // 4) / (size // 4))
    axis = torch.cat([angles.sin(), angles.cos()], dim=1)
    return torch.cat([axis[:, None].expand(-1, grid, -1), axis[None].expand(grid, -1, -1)], dim=-1).flatten(0, 1)


def _look_at_the_alike(attention: nn.Module) -> None:
    """Queries match keys of the same input; what is taken over is a little of the input, negated."""
    size, heads = attention.embed_dim, attention.num_heads
    alike = [_factors(0.7 * torch.eye(size) + 0.7 * torch.randn(size, size) / size**0.5, size // heads) for _ in range(heads)]
    attention.q_proj.weight.copy_(torch.cat([left.T for left, _ in alike]))
    attention.k_proj.weight.copy_(torch.cat([right for _, right in alike]))
    out, value = _factors(0.4 * torch.randn(size, size) / size**0.5 - 0.4 * torch.eye(size), size)
    attention.v_proj.weight.copy_(value)
    attention.out_proj.weight.copy_(out)


def _factors(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, rank] and [rank, size], whose product comes nearest to the matrix."""
    left, scales, right = torch.linalg.svd(matrix)
    root = scales[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank]


class PretrainingHeads(nn.Module):
    """Read facts off single image tokens, and off each patch what it shows."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.slots = nn.ModuleList(nn.Linear(hidden_size, len(slot.values)) for slot in SLOTS)
        self.patches = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, count))
            for count in (1 + len(SHAPES) + len(DIGITS), 1 + len(COLOURS), 2, 1 + len(POSITIONS))
        )
        self.norm = nn.LayerNorm(hidden_size)

    def slot_logits(self, last: torch.Tensor) -> list[torch.Tensor]:
        """For each slot, logits of its values, [batch, values]."""
        last = self.norm(last)
        return [head(last[:, FIRST_SLOT + index]) for index, head in enumerate(self.slots)]

    def patch_logits(self, middle: torch.Tensor) -> list[torch.Tensor]:
        """Logits of kind, colour, centre and position, [batch, patches, classes] each."""
        return [head(middle) for head in self.patches]
