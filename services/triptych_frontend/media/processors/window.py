"""Audio for a model whose decoder attends to the whole of it (Whisper): an item takes no token of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triptych.v1 import common_pb2
from triptych_common.model.store import read_json

from triptych_frontend.errors import refusal
from triptych_frontend.media.item import AUDIO, AudioHeader, Expansion, MediaHeader
from triptych_frontend.media.processors.placeholders import PlaceholderExpander

_WINDOW_S = 30.0


class AudioWindow(PlaceholderExpander):
    """One audio item, of at most a window, which the encoder pads.

    Args:
        path: directory of the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.embed_token_ids = frozenset()
        self.modalities = frozenset({AUDIO})
        self.max_embeds = 0
        self._window_s = float(read_json(path / "preprocessor_config.json").get("chunk_length") or _WINDOW_S)
        self._num_states = int(read_json(path / "config.json").get("max_source_positions") or 1500)

    def max_items(self, modality: common_pb2.Modality) -> int | None:
        return 1

    def placeholder(self, modality: common_pb2.Modality) -> str:
        return ""

    def _known_options(self, modality: common_pb2.Modality) -> frozenset[str]:
        return frozenset()

    def expand(self, header: MediaHeader, options: Mapping[str, Any], field: str) -> Expansion:
        if isinstance(header, AudioHeader) and header.duration_s > self._window_s:
            problem = f"is {header.duration_s:.1f} s long; this model takes at most {self._window_s:g} s at once"
            raise refusal(field, problem, self._window_s, f"{header.duration_s:.1f}")
        return Expansion("", self._num_states, is_beside=True)
