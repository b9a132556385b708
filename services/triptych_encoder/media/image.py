"""Images: from a raw file to upright RGB."""

from __future__ import annotations

import re
import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from triptych_common.media.limits import IMAGE_FORMATS, MediaLimits

from triptych_encoder.media.limits import bad_media, check_pixels, check_size

Image.init()
#: The formats that this build of Pillow can read.
FORMATS = tuple(name for name in IMAGE_FORMATS if name in Image.OPEN)
#: Limits of a JPEG. A progressive one has about ten scans.
_MAX_SCANS, _MAX_PARTS = 100, 10_000
#: The begin of a part of a JPEG: not a stuffed 0xff and not a restart marker inside a scan. Any bytes may lie between parts.
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
#: Exceptions of Pillow's decoders for broken files.
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error, zlib.error)

# Our own limit is checked before any pixel is decoded. Pillow's limit would only warn at first.
Image.MAX_IMAGE_PIXELS = None
ImageFile.LOAD_TRUNCATED_IMAGES = False


def decode_image(data: bytes, limits: MediaLimits) -> Image.Image:
    """The image in RGB, rotated as its EXIF orientation says. For an animation, the first frame.

    Raises:
        InvalidRequestError: the file is not an image, is damaged, or exceeds a limit.
    """
    check_size("image", data, limits)
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise bad_media("image", f"is of no known format; known are {', '.join(FORMATS)}") from error
    except _DECODE_ERRORS as error:
        raise bad_media("image", f"cannot be read: {error}") from error
    check_pixels("image", image.width, image.height, limits)
    if image.format in ("JPEG", "MPO"):
        _check_scans(data)
    try:
        image.load()
        return _to_rgb(ImageOps.exif_transpose(image))
    except _DECODE_ERRORS as error:
        raise bad_media("image", f"is truncated or damaged: {error}") from error


def _check_scans(data: bytes) -> None:
    """Refuse a JPEG with more scans than any encoder writes. A scan of a few bytes takes as long to decode as the whole image."""
    position, num_parts, num_scans = 2, 0, 0
    while found := _MARKER.search(data, position):
        if found[1] == b"\xd9":
            return
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
        num_parts += 1
        num_scans += found[1] == b"\xda"
        if num_scans > _MAX_SCANS or num_parts > _MAX_PARTS:
            raise bad_media("image", f"is a JPEG of more than {_MAX_SCANS} scans, or {_MAX_PARTS} parts", _MAX_SCANS)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16 bits per pixel. Pillow would clip the values at 255 instead of scaling them.
        return Image.fromarray((np.asarray(image, dtype=np.int64).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")
