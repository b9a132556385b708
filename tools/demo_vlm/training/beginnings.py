"""Initial weights for fast learning: with random ones, a transformer spends most of its training on where to attend.

Each token begins with a part that identifies its patch and a part with the principal components of that patch. The attention of the
first layers gathers the patches of the token's own cell, one head for each. Training can undo all of it.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import one_hot, unfold

from ..dataset.geometry import CELL_GRID, CELL_OF_PATCH, CELLS, GRID, PATCH_IN_CELL, PATCH_SIZE
from .vision import VisionPart

_NUM_GATHERING_LAYERS = 2
_SMALLEST_VARIANCE = 1e-2
#: Length of the part of a token that identifies its patch: about a third of the total.
_PLACE_LENGTH = 5.0
#: Difference of attention scores between the patch that a head gathers and the others.
_SHARPNESS = 8.0


@torch.no_grad()
def begin(vision: VisionPart, pixels: torch.Tensor) -> None:
    """Set the tower's embeddings and first layers.

    Args:
        pixels: some images, [batch, 3, size, size].
    """
    embedding, places = vision.tower.embeddings.patch_embedding, GRID**2
    patches = unfold(pixels, PATCH_SIZE, stride=PATCH_SIZE).transpose(1, 2).flatten(0, 1)
    mean, variances, directions = _principal_components(patches, embedding.out_channels - places)
    # The last components are hardly more than noise, so they are not scaled up to the size of the first.
    whitened = directions / (variances + _SMALLEST_VARIANCE).sqrt()[:, None]
    embedding.weight.zero_()
    embedding.bias.zero_()
    embedding.weight[places:] = whitened.view(-1, *embedding.weight.shape[1:])
    embedding.bias[places:] = -whitened @ mean
    vision.tower.embeddings.position_embedding.weight.copy_(_PLACE_LENGTH * torch.eye(places, embedding.out_channels))
    for layer in vision.tower.encoder.layers[:_NUM_GATHERING_LAYERS]:
        _gather_cell(layer.self_attn)


def _principal_components(patches: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean [values]; and for the largest components the variances [count] and directions [count, values]."""
    mean = patches.mean(0)
    centred = patches - mean
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(patches))
    return mean, variances[-count:].flip(0).clamp_min(0), directions[:, -count:].flip(1).T


def _gather_cell(attention: nn.Module) -> None:
    """Head h attends to patch h of its own cell and copies its components through a random projection, not the position part."""
    places, size, heads = GRID**2, attention.embed_dim, attention.num_heads
    head_size = size // heads
    cells = one_hot(torch.tensor(CELL_OF_PATCH)).T.float()
    quadrants = one_hot(torch.tensor(PATCH_IN_CELL)).T.float()
    scale = (_SHARPNESS * head_size**0.5) ** 0.5 / _PLACE_LENGTH
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
        projection.weight.zero_()
    for head in range(heads):
        rows = slice(head * head_size, head * head_size + CELLS**2)
        attention.q_proj.weight[rows, :places] = scale * cells
        attention.k_proj.weight[rows, :places] = scale * cells
        same_patch = head * head_size + CELLS**2
        attention.q_proj.bias[same_patch] = scale * _PLACE_LENGTH
        attention.k_proj.weight[same_patch, :places] = scale * quadrants[head % CELL_GRID**2]
        attention.v_proj.weight[head * head_size : (head + 1) * head_size, places:] = _orthogonal(head_size, size - places)
    attention.out_proj.weight[places:] = _orthogonal(size - places, size)


def _orthogonal(rows: int, columns: int) -> torch.Tensor:
    return nn.init.orthogonal_(torch.empty(rows, columns))
