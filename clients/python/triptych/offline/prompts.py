"""What may be given as a prompt, as its `multi_modal_data`, and as the sampling parameters of several prompts."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar, get_args

from triptych.errors import InvalidRequestError
from triptych.requests.media import Kind, media_item
from triptych.requests.types import Messages
from triptych.v1 import common_pb2, generation_pb2

T = TypeVar("T")
P = TypeVar("P")

#: Text; token ids; or a dictionary: {"prompt": str}, {"prompt_token_ids": [int]}, with {"multi_modal_data": {...}} or without.
Prompt = str | Sequence[int] | Mapping[str, Any]
#: One prompt, or any iterable of prompts.
Prompts = Prompt | Iterable[Prompt]

#: A rate of this many Hz is none, and with channels its bytes per second do not fit into the file's header.
_MAX_RATE = 1 << 20
_KINDS: tuple[Kind, ...] = get_args(Kind)
_KEYS = frozenset({"prompt", "prompt_token_ids", "multi_modal_data", "cache_salt"})


def each_prompt(prompts: Prompts) -> Iterable[Prompt]:
    """The prompts: one that is given alone is the only one."""
    if isinstance(prompts, (str, Mapping)) or _is_token_ids(prompts):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Iterable):
        raise InvalidRequestError(f"prompts must be a prompt or prompts, not {type(prompts).__name__}", field="prompts")
    return prompts  # type: ignore[return-value]


def each_conversation(messages: Messages | Iterable[Messages]) -> Iterable[Messages]:
    """The conversations: one that is given alone, as text or as turns, is the only one. Its first element decides."""
    is_turns = isinstance(messages, Sequence) and len(messages) > 0 and not isinstance(messages[0], (str, Sequence))
    if isinstance(messages, str) or is_turns:
        return [messages]  # type: ignore[list-item]
    return messages  # type: ignore[return-value]


def with_params(prompts: Iterable[T], params: object, default: P) -> Iterator[tuple[T, P]]:
    """Each prompt with its sampling parameters.

    Args:
        params: those of all prompts, or a sequence with those of each, of the class of `default`. None for `default`.

    Raises:
        TypeError: something else.
        ValueError: the sequence is not as long as the prompts; if the prompts have no length, when one of them has ended.
    """
    kind = type(default)
    if params is None or isinstance(params, kind):
        one = default if params is None else params
        return ((prompt, one) for prompt in prompts)
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise TypeError(f"sampling_params must be {kind.__name__} or a sequence of them, not {type(params).__name__}")
    for index, each in enumerate(params):
        if not isinstance(each, kind):
            raise TypeError(f"sampling_params[{index}] must be {kind.__name__}, not {type(each).__name__}")
    if isinstance(prompts, Sized) and len(prompts) != len(params):
        raise ValueError(f"{len(params)} sampling_params for {len(prompts)} prompts")
    return _pairs(prompts, params)


def _pairs(prompts: Iterable[T], params: Sequence[P]) -> Iterator[tuple[T, P]]:
    num_prompts = 0
    for num_prompts, prompt in enumerate(prompts, start=1):
        if num_prompts > len(params):
            raise ValueError(f"{len(params)} sampling_params for more prompts")
        yield prompt, params[num_prompts - 1]
    if num_prompts < len(params):
        raise ValueError(f"{len(params)} sampling_params for {num_prompts} prompts")


def read_prompt(prompt: Prompt) -> tuple[generation_pb2.CompleteRequest, str | None]:
    """One prompt as a request, without options; and its text, which is None if it was given as token ids.

    Raises:
        InvalidRequestError: it is none.
    """
    if isinstance(prompt, str):
        return generation_pb2.CompleteRequest(text=prompt), prompt
    if _is_token_ids(prompt):
        return generation_pb2.CompleteRequest(token_ids=_token_ids(prompt)), None
    if not isinstance(prompt, Mapping):
        raise InvalidRequestError(f"a prompt is text, token ids or a dictionary, not {type(prompt).__name__}")
    if unknown := sorted(prompt.keys() - _KEYS):
        raise InvalidRequestError(f"a prompt has no {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}", field=str(unknown[0]))
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if (text is None) == (token_ids is None):
        raise InvalidRequestError("a prompt has either 'prompt' or 'prompt_token_ids'", field="prompt")
    request = generation_pb2.CompleteRequest(text=text, token_ids=_token_ids(token_ids) if text is None else None)
    if media := prompt.get("multi_modal_data"):
        request.media.extend(media_items(media))
    if (salt := prompt.get("cache_salt")) is not None:
        request.options.cache_salt = salt
    return request, text


def _token_ids(token_ids: Any) -> generation_pb2.TokenIds:
    try:
        return generation_pb2.TokenIds(ids=token_ids)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"token ids are integers that are not negative: {error}", field="prompt_token_ids") from error


def _is_token_ids(prompt: object) -> bool:
    """Whether this is one prompt of token ids. Its first element decides."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes)):
        return False
    return len(prompt) > 0 and hasattr(prompt[0], "__index__")


def media_items(multi_modal_data: Mapping[str, Any]) -> Iterator[common_pb2.MediaItem]:
    """The items, kind by kind.

    Args:
        multi_modal_data: "image", "audio" or "video" -> a source, or a list of sources: a path, the bytes of a file, an address;
            for images also a PIL image or an array uint8 [height, width, 3]; for audio also a pair of an array float32 [samples]
            or [samples, channels] and its sampling rate in Hz.

    Raises:
        InvalidRequestError: an unknown kind, or something else than a source.
        OSError: a file cannot be read.
    """
    if not isinstance(multi_modal_data, Mapping):
        name = type(multi_modal_data).__name__
        raise InvalidRequestError(f"multi_modal_data is a dictionary, not {name}", field="multi_modal_data", value=name)
    if unknown := sorted(multi_modal_data.keys() - set(_KINDS)):
        known = ", ".join(_KINDS)
        message = f"multi_modal_data has no {unknown[0]!r}; known are {known}"
        raise InvalidRequestError(message, field="multi_modal_data", limit=known, value=unknown[0])
    for kind in _KINDS:
        given = multi_modal_data.get(kind, [])
        sources = given if isinstance(given, list) else [given]
        for index, source in enumerate(sources):
            if kind == "audio" and isinstance(source, tuple) and len(source) == 2:
                source = _wav(*source)
            yield media_item(kind, source, field=f"multi_modal_data.{kind}[{index}]")


def _wav(samples: Any, rate: int) -> bytes:
    """A WAV file of 32-bit floats, which loses nothing."""
    import numpy as np

    array = np.ascontiguousarray(samples, dtype="<f4")
    if array.ndim not in (1, 2):
        message = f"audio has the shape [samples] or [samples, channels]; given: {list(array.shape)}"
        raise InvalidRequestError(message, field="audio")
    num_channels = array.shape[1] if array.ndim == 2 else 1
    if not 0 < int(rate) < _MAX_RATE:
        message = f"the sampling rate of audio is between 1 and {_MAX_RATE - 1} Hz; given: {rate}"
        raise InvalidRequestError(message, field="audio", limit=_MAX_RATE - 1, value=rate)
    data = array.tobytes()
    # Format 3 is IEEE float.
    form = struct.pack("<HHIIHH", 3, num_channels, int(rate), int(rate) * num_channels * 4, num_channels * 4, 32)
    fact = struct.pack("<I", array.shape[0])
    chunks = _chunk(b"fmt ", form) + _chunk(b"fact", fact) + _chunk(b"data", data)
    return _chunk(b"RIFF", b"WAVE" + chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content
