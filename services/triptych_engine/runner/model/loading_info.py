"""Whether a checkpoint had all weights of its model, by what transformers reports about loading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triptych.errors import StartupError


def check_loaded(info: Mapping[str, Any], path: Path, is_needed: Callable[[str], bool]) -> None:
    """Refuse a model of which transformers has initialised weights at random.

    Args:
        info: what `from_pretrained` reports with `output_loading_info` and `ignore_mismatched_sizes`.
        path: the directory of the model.
        is_needed: whether the weight with this name is used.

    Raises:
        StartupError: weights are missing, or have another shape than config.json says. The message names one.
    """
    for key, stored, expected in sorted(info["mismatched_keys"]):
        raise StartupError(
            f"the weights in {path} do not fit its config.json: {key} has the shape {list(stored)}, not {list(expected)}"
        )
    missing = sorted(filter(is_needed, info["missing_keys"]))
    if missing:
        raise StartupError(f"the checkpoint in {path} lacks {len(missing)} weights, e.g. {missing[0]}; fetch the model again")
