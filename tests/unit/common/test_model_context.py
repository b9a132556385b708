"""The context of a model, from its configuration."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from triptych_common.model.store import model_info

PHI = {
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
}
PHI_NOW = {
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096},
}


def context(tmp_path: Path, config: dict[str, Any], max_model_len: int | None = None) -> int:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return int(model_info(tmp_path, "m", max_model_len).max_model_len)


@pytest.mark.parametrize(
    ("config", "limit", "reason"),
    [(PHI, 4096, "longrope"), (PHI_NOW, 4096, "longrope")],
)
def test_a_context_that_cannot_be_computed_rightly_is_clamped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, Any], limit: int, reason: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert context(tmp_path, config) == limit
    assert f"the context of m is {limit} tokens" in caplog.text
    assert reason in caplog.text


def test_who_asks_for_a_context_gets_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert context(tmp_path, PHI, 8000) == 8000, "the engine then refuses the model, and says why"
    assert context(tmp_path, {"max_position_embeddings": 2048}) == 2048
    assert context(tmp_path, {"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}) == 2048
    assert not caplog.records
