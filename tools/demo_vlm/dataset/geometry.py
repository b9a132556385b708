"""How the tower splits images: a cell of the scenes' three by three grid is exactly two by two patches."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

IMAGE_SIZE = 96
PATCH_SIZE = 16
GRID = IMAGE_SIZE // PATCH_SIZE
CELLS = 3
CELL_SIZE = IMAGE_SIZE // CELLS
#: Patches along one edge of a cell.
CELL_GRID = GRID // CELLS
#: For each patch, row by row, the index of its cell.
CELL_OF_PATCH = tuple(row // CELL_GRID * CELLS + column // CELL_GRID for row in range(GRID) for column in range(GRID))
#: For each patch, its index within its cell.
PATCH_IN_CELL = tuple(row % CELL_GRID * CELL_GRID + column % CELL_GRID for row in range(GRID) for column in range(GRID))


def resize(image: Image.Image) -> Image.Image:
    """Resize like SigLIP's image processor."""
    return image.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)


def to_pixels(image: Image.Image) -> torch.Tensor:
    """Pixels like SigLIP's image processor, from -1 to 1; float32 [3, IMAGE_SIZE, IMAGE_SIZE]."""
    return torch.from_numpy(np.asarray(resize(image), dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1)
