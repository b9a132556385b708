"""Media of requests: files by path or bytes, addresses, PIL images and arrays."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from triptych.errors import InvalidRequestError
from triptych.installation import install_command
from triptych.requests.types import MediaSource
from triptych.v1 import common_pb2

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["image", "audio", "video"]

_MODALITIES = {
    "image": common_pb2.MODALITY_IMAGE,
    "audio": common_pb2.MODALITY_AUDIO,
    "video": common_pb2.MODALITY_VIDEO,
}
_ADDRESSES = ("http:", "https:", "data:", "file:")
#: Modes of PIL that PNG keeps as they are.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def media_item(kind: Kind, source: MediaSource, *, field: str = "") -> common_pb2.MediaItem:
    """One item for a request.

    Args:
        kind: "image", "audio" or "video".
        source: a path (str or PathLike) or the bytes of a file, sent as they are; an `https:` or `data:` address, which the server
            reads; for images also a PIL image or an array uint8 [height, width, 3] or [height, width], which become PNG; or a
            finished item.
        field: where the item stands in the request, for errors.

    Raises:
        InvalidRequestError: an image or array that cannot become PNG without loss, or something else than a source.
        OSError: the file cannot be read.
    """
    if isinstance(source, common_pb2.MediaItem):
        return source
    item = common_pb2.MediaItem(modality=_MODALITIES[kind])
    if isinstance(source, str) and source.startswith(_ADDRESSES):
        item.url = source
    elif isinstance(source, str | os.PathLike):
        item.data = Path(source).read_bytes()
    elif isinstance(source, bytes | bytearray | memoryview):
        item.data = bytes(source)
    elif kind == "image" and _is(source, "PIL.Image", "Image"):
        item.data = _png(source, field)
    elif kind == "image" and _is(source, "numpy", "ndarray"):
        item.data = _png(_from_array(source, field), field)
    else:
        name = type(source).__name__
        raise _refused(field, f"{name} is not a source of {kind}", value=name)
    return item


def _refused(field: str, message: str, *, limit: str = "", value: object) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}" if field else message, field=field, limit=limit, value=value)


def _is(source: object, module: str, name: str) -> bool:
    """Whether the source is of a type of a module that may not be installed. Who has such an object has imported it."""
    return module in sys.modules and isinstance(source, getattr(sys.modules[module], name))


def _png(image: Any, field: str) -> bytes:
    if image.mode not in _PNG_MODES:
        message = f'an image of mode {image.mode} cannot be sent without loss; convert it: image.convert("RGB")'
        raise _refused(field, message, limit=", ".join(_PNG_MODES), value=image.mode)
    if 0 in image.size:
        size = f"{image.width} x {image.height}"
        raise _refused(field, f"an image of {size} is empty", value=size)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _from_array(array: Any, field: str) -> Image:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"arrays as pictures need pillow; run: {install_command('triptych', 'media')}") from error
    if array.dtype != "uint8":
        raise _refused(field, f"an array of {array.dtype} is no picture; uint8 is", limit="uint8", value=array.dtype)
    if 0 in array.shape or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        shapes = "[height, width, 3] or [height, width]"
        shape = list(array.shape)
        raise _refused(field, f"an array of shape {shape} is no picture; {shapes} is", limit=shapes, value=shape)
    return Image.fromarray(array)
