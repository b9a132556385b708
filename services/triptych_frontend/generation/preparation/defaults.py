"""A checkpoint's own defaults of sampling, from its generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

from triptych.errors import InvalidRequestError, StartupError
from triptych.v1 import common_pb2, generation_pb2

from triptych_frontend.generation.sampling import check_options

#: Of vLLM's list. Its max_new_tokens is left out: it limits answers without the client's knowledge.
_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(model: Path) -> common_pb2.SamplingParams:
    """The defaults of a model directory; empty if it has none. Raises StartupError if its file is not valid."""
    path = model / "generation_config.json"
    if not path.is_file():
        return common_pb2.SamplingParams()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        defaults = common_pb2.SamplingParams(**{name: config[name] for name in _NAMES if config.get(name) is not None})
        check_options(generation_pb2.GenerationOptions(sampling=defaults), vocab_size=1)
    except (ValueError, TypeError, AttributeError, InvalidRequestError) as error:
        raise StartupError(f"{path} cannot be used for --generation-config auto: {error}") from error
    return defaults


def with_defaults(sampling: common_pb2.SamplingParams, defaults: common_pb2.SamplingParams) -> common_pb2.SamplingParams:
    """The client's parameters, with the defaults where it set none."""
    merged = common_pb2.SamplingParams()
    merged.CopyFrom(defaults)
    merged.MergeFrom(sampling)
    return merged
