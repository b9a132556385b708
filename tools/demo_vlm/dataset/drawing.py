"""Draws scenes as images. Shades, sizes, noise and compression vary; the content does not."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterable

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .scenes import SHAPES, Item, Scene

RGB = tuple[int, int, int]
#: Shades that people call by that name. Each is varied slightly when drawn.
_SHADES = {
    "red": ((255, 0, 0), (220, 20, 40), (200, 30, 30), (230, 50, 50)),
    "orange": ((255, 165, 0), (255, 140, 0), (245, 130, 30)),
    "yellow": ((255, 255, 0), (255, 225, 20), (240, 220, 50)),
    "green": ((0, 128, 0), (0, 255, 0), (30, 160, 60), (50, 205, 50), (0, 180, 80)),
    "blue": ((0, 0, 255), (30, 80, 220), (20, 50, 180), (50, 120, 240)),
    "purple": ((128, 0, 128), (130, 40, 190), (150, 50, 200), (100, 20, 150)),
    "pink": ((255, 192, 203), (255, 105, 180), (250, 140, 190), (255, 150, 200)),
    "black": ((0, 0, 0), (25, 25, 25), (40, 38, 42)),
}
_SHADE_JITTER = 10
_SIZES = (112, 128, 160, 192, 224, 256)
#: Images are drawn larger and then reduced, because ImageDraw does not smooth edges.
_SUPERSAMPLING = 2
_OUTLINES = {
    "square": ((-0.72, -0.72), (0.72, -0.72), (0.72, 0.72), (-0.72, 0.72)),
    "triangle": ((0, -1), (0.92, 0.75), (-0.92, 0.75)),
    "star": tuple((r * math.sin(k * math.pi / 5), -r * math.cos(k * math.pi / 5)) for k, r in enumerate((1.0, 0.42) * 5)),
    "cross": tuple(
        (0.3 * x, 0.3 * y)
        for x, y in ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1))
    ),
}


def draw(scene: Scene, rng: random.Random, sizes: tuple[int, ...] = _SIZES) -> Image.Image:
    """The scene as an RGB image. Its edges have some of the sizes, in pixels."""
    shades = [shade(item.colour, rng) for item in scene.items]
    image = paint(scene.items, shades, background(scene.dark, rng), sizes, rng)
    if rng.random() < 0.4:
        image = _add_noise(image, rng)
    return compress(image, rng) if rng.random() < 0.3 else image


def paint(items: tuple[Item, ...], shades: list[RGB], ground: RGB, sizes: tuple[int, ...], rng: random.Random) -> Image.Image:
    """Items in their shades and nothing else, in an image whose edges have some of the sizes, in pixels."""
    height = rng.choice(sizes)
    width = height if rng.random() < 0.6 else max(64, round(height * rng.uniform(0.8, 1.3)))
    image = Image.new("RGB", (width * _SUPERSAMPLING, height * _SUPERSAMPLING), ground)
    canvas = ImageDraw.Draw(image)
    for item, fill in zip(items, shades, strict=True):
        if item.kind in SHAPES:
            _draw_shape(canvas, item, image.size, fill)
        else:
            _draw_digit(image, item, fill, rng)
    return image.resize((width, height), Image.Resampling.BOX)


def background(dark: bool, rng: random.Random) -> RGB:
    """A light or dark background, at most slightly coloured."""
    if rng.random() < 0.3:
        return (0, 0, 0) if dark else (255, 255, 255)
    grey = rng.randint(10, 60) if dark else rng.randint(205, 250)
    return _rgb(grey + rng.randint(-6, 6) for _ in range(3))


def shade(colour: str, rng: random.Random) -> RGB:
    """A random shade with that name."""
    return _rgb(part + rng.randint(-_SHADE_JITTER, _SHADE_JITTER) for part in rng.choice(_SHADES[colour]))


def _rgb(parts: Iterable[int]) -> RGB:
    red, green, blue = (max(0, min(255, part)) for part in parts)
    return red, green, blue


def _draw_shape(canvas: ImageDraw.ImageDraw, item: Item, size: tuple[int, int], fill: RGB) -> None:
    x, y, radius = item.x * size[0], item.y * size[1], item.size * min(size) / 2
    if item.kind == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
        return
    turn = math.radians(item.rotation_degrees)
    cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
    canvas.polygon([(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in _OUTLINES[item.kind]], fill=fill)


def _draw_digit(image: Image.Image, item: Item, fill: RGB, rng: random.Random) -> None:
    """A digit of Pillow's own font, thin to bold, narrow to wide, slightly slanted and rotated."""
    height = item.size * min(image.size)
    font = ImageFont.load_default(size=96)
    stroke = rng.randint(0, 7)
    left, top, right, bottom = font.getbbox(item.kind, stroke_width=stroke)
    glyph = Image.new("L", (int(right - left) + 8, int(bottom - top) + 8))
    ImageDraw.Draw(glyph).text((4 - left, 4 - top), item.kind, fill=255, font=font, stroke_width=stroke)
    width = glyph.width * height / glyph.height * rng.uniform(0.85, 1.25)
    glyph = glyph.resize((max(1, round(width)), round(height)), Image.Resampling.BILINEAR)
    slant = rng.uniform(-0.15, 0.15)
    slanted = (1, slant, -slant * glyph.height / 2, 0, 1, 0)
    glyph = glyph.transform(glyph.size, Image.Transform.AFFINE, slanted, Image.Resampling.BILINEAR)
    glyph = glyph.rotate(item.rotation_degrees, Image.Resampling.BILINEAR, expand=True)
    corner = (round(item.x * image.width - glyph.width / 2), round(item.y * image.height - glyph.height / 2))
    image.paste(Image.new("RGB", glyph.size, fill), corner, glyph)


def _add_noise(image: Image.Image, rng: random.Random) -> Image.Image:
    noise = np.random.default_rng(rng.getrandbits(64)).standard_normal((image.height, image.width, 3), dtype=np.float32)
    pixels = np.asarray(image, dtype=np.float32) + noise * rng.uniform(2, 10)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def compress(image: Image.Image, rng: random.Random) -> Image.Image:
    """The image after a JPEG compression of random quality."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=rng.randint(50, 95))
    return Image.open(file).convert("RGB")
