"""The element type that a model is computed in."""

from __future__ import annotations

import pytest
import torch
from triptych_engine.runner.model import precision
from triptych_engine.runner.model.precision import compute_dtype, kv_cache_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("computes_bfloat16", "checkpoint", "device", "expected"),
    [
        (True, torch.bfloat16, CPU, torch.bfloat16),
        (False, torch.bfloat16, CPU, torch.float32),
        (True, torch.float16, CPU, torch.float32),
        (False, torch.float32, CPU, torch.float32),
        (False, torch.bfloat16, GPU, torch.bfloat16),
        (False, torch.float16, GPU, torch.float16),
    ],
)
def test_a_type_that_the_device_lacks_becomes_float32(
    monkeypatch: pytest.MonkeyPatch, computes_bfloat16: bool, checkpoint: torch.dtype, device: torch.device, expected: torch.dtype
) -> None:
    monkeypatch.setattr(precision, "cpu_computes_bfloat16", lambda: computes_bfloat16)
    assert compute_dtype(checkpoint, device) == expected


@pytest.mark.parametrize(
    ("asked", "checkpoint", "computed", "is_own_choice", "expected"),
    [
        (None, torch.bfloat16, torch.float32, True, torch.bfloat16),
        (None, torch.bfloat16, torch.float32, False, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32, True, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32, True, torch.bfloat16),
        (None, torch.float16, torch.float32, True, torch.float32),
        (None, torch.bfloat16, torch.bfloat16, True, torch.bfloat16),
        (None, torch.float32, torch.bfloat16, False, torch.bfloat16),
    ],
)
def test_keys_and_values_are_kept_in_the_models_type_unless_that_stands_in_for_a_narrower_one(
    asked: torch.dtype | None, checkpoint: torch.dtype, computed: torch.dtype, is_own_choice: bool, expected: torch.dtype
) -> None:
    assert kv_cache_dtype(asked, checkpoint, computed, is_own_choice=is_own_choice) == expected
