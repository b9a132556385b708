"""Cells cut out of real drawings, from which images are composed by the hundred: drawing each image would cost more than training.

A stencil says how much of each pixel of its cell an item covers, after the drawing was resized like SigLIP does it. Resizing is
linear, so a shade blended onto a background through the stencil gives the same image as drawing in that shade.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from .drawing import background, compress, paint, shade
from .geometry import CELL_SIZE, CELLS, IMAGE_SIZE, resize
from .scenes import DIGITS, POSITIONS, SHAPES, Scene, place

_KINDS = SHAPES + DIGITS
_SIZES = (96, 112, 128, 160, 192, 224, 256, 320)
#: Number of stencils of each kind.
_COUNT = 2000
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


class Stencils:
    """The stencils of each kind, uint8 [kinds, count, CELL_SIZE, CELL_SIZE]."""

    def __init__(self, masks: torch.Tensor) -> None:
        self._masks = masks

    @classmethod
    def load(cls, path: Path) -> Stencils:
        """Load from a file, which is created if it does not exist."""
        if not path.is_file():
            torch.save(_cut(_COUNT, random.Random("stencils")), path)
        return cls(torch.load(path))

    def compose(self, scenes: list[Scene], rng: random.Random) -> torch.Tensor:
        """Images of scenes, float32 [scenes, 3, IMAGE_SIZE, IMAGE_SIZE] from -1 to 1; items vary within their cells."""
        generator = torch.Generator().manual_seed(rng.getrandbits(60))
        grounds = torch.tensor([background(scene.dark, rng) for scene in scenes], dtype=torch.float32)
        cover = torch.zeros(len(scenes), CELLS**2, CELL_SIZE, CELL_SIZE)
        shades = torch.zeros(len(scenes), CELLS**2, 3)
        for index, scene in enumerate(scenes):
            for item in scene.items:
                cell = POSITIONS.index(item.position)
                cover[index, cell] = self._masks[_KINDS.index(item.kind), rng.randrange(self._masks.shape[1])]
                shades[index, cell] = torch.tensor(shade(item.colour, rng), dtype=torch.float32)
        laid_on = cover[:, :, None] / 255 * (shades - grounds[:, None])[..., None, None]
        pixels = grounds[:, :, None, None] + _side_by_side(laid_on)
        strengths = torch.tensor([rng.uniform(0, 6) if rng.random() < 0.4 else 0.0 for _ in scenes])
        pixels += strengths[:, None, None, None] * torch.randn(pixels.shape, generator=generator)
        pixels = pixels.clamp_(0, 255)
        for index in range(len(scenes)):
            if rng.random() < 0.25:
                pixels[index] = _compressed(pixels[index], rng)
        return pixels / 127.5 - 1


def _cut(count: int, rng: random.Random) -> torch.Tensor:
    return torch.stack([torch.cat([_cut_one(kind, rng) for _ in range(-(-count // CELLS**2))])[:count] for kind in _KINDS])


def _cut_one(kind: str, rng: random.Random) -> torch.Tensor:
    """The cells of one drawing, uint8 [cells, CELL_SIZE, CELL_SIZE]."""
    items = tuple(place(rng, kind, "black", cell) for cell in range(CELLS**2))
    drawn = paint(items, [_WHITE] * len(items), _BLACK, _SIZES, rng)
    pixels = torch.from_numpy(np.array(resize(drawn).convert("L")))
    return pixels.view(CELLS, CELL_SIZE, CELLS, CELL_SIZE).transpose(1, 2).flatten(0, 1)


def _side_by_side(cells: torch.Tensor) -> torch.Tensor:
    """From cells [batch, cells, 3, size, size] to images [batch, 3, IMAGE_SIZE, IMAGE_SIZE]."""
    rows = cells.view(-1, CELLS, CELLS, 3, CELL_SIZE, CELL_SIZE)
    return rows.permute(0, 3, 1, 4, 2, 5).reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE)


def _compressed(pixels: torch.Tensor, rng: random.Random) -> torch.Tensor:
    image = Image.fromarray(pixels.permute(1, 2, 0).to(torch.uint8).numpy())
    return torch.from_numpy(np.array(compress(image, rng), dtype=np.float32)).permute(2, 0, 1)
