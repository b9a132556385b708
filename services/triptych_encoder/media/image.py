"""Pictures: raw file to RGB, upright."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from triptych_encoder.media.limits import MediaLimits, bad_media, check_pixels, check_size

Image.init()
#: Formats that are read, as far as this Pillow was built with them. Others start programs (EPS) or have no place here.
FORMATS = tuple(name for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "ICO") if name in Image.OPEN)
#: What Pillow's decoders raise for broken files.
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error)

# The limit is ours, and checked before a pixel is decoded; Pillow's own would only warn.
Image.MAX_IMAGE_PIXELS = None
ImageFile.LOAD_TRUNCATED_IMAGES = False


def decode_image(data: bytes, limits: MediaLimits) -> Image.Image:
    """The picture in RGB, turned as its EXIF orientation says; of an animation the first frame.

    Raises:
        InvalidRequestError: it is no picture, is damaged, or crosses a limit; says which.
    """
    check_size("image", data, limits)
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise bad_media("image", f"is of no known format; known are {', '.join(FORMATS)}") from error
    except _DECODE_ERRORS as error:
        raise bad_media("image", f"cannot be read: {error}") from error
    check_pixels("image", image.width, image.height, limits)
    try:
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except _DECODE_ERRORS as error:
        raise bad_media("image", f"is truncated or damaged: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits per pixel, which Pillow would clip at 255 rather than scale.
        return Image.fromarray((np.asarray(image, dtype=np.int64).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")
