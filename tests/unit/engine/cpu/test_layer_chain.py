"""Layers that follow each other, computed in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from torch import nn
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu import layer_chain
from triptych_engine.runner.cpu.decoder_layer import FusedDecoderLayer, _calls
from triptych_engine.runner.cpu.layer_chain import LayerCall, chain_layers
from triptych_engine.runner.cpu.layer_kernel import RotaryTables
from triptych_engine.runner.model_runner import ModelRunner

PROMPT = [(7 * i) % 90 for i in range(50)]


@pytest.fixture(params=["none", "int8"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> ModelRunner:
    path = save_random_model(tmp_path, a_tiny_llama_config(num_hidden_layers=4), dtype=torch.bfloat16)
    return a_runner(path, quantization=request.param)


def a_runner(path: Path, **options: Any) -> ModelRunner:
    return build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, dtype=torch.float32, **options))


def fused_layers(runner: ModelRunner) -> list[FusedDecoderLayer]:
    return [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]


def num_calls(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers each call of the kernel computes, from here on."""
    calls: list[int] = []
    compute = layer_chain.compute_layers
    monkeypatch.setattr(layer_chain, "compute_layers", lambda layers, *args: (calls.append(len(layers)), compute(layers, *args))[1])
    return calls


def test_a_chain_computes_what_its_layers_do(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = num_calls(runner, monkeypatch)
    chained = runner.prompt_logits(PROMPT, num_chunks=3)
    assert calls == [4, 4, 4]
    for layer in fused_layers(runner):
        layer.chain = None
    assert torch.equal(runner.prompt_logits(PROMPT, num_chunks=3), chained)
    assert calls == [4, 4, 4]


def test_a_layer_that_is_watched_is_computed_by_itself(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, calls = runner.prompt_logits(PROMPT), num_calls(runner, monkeypatch)
    seen: list[torch.Tensor] = []
    hook = fused_layers(runner)[2].register_forward_hook(lambda layer, args, output: seen.append(output.clone()))
    assert torch.equal(runner.prompt_logits(PROMPT), expected)
    assert [states.shape for states in seen] == [(1, len(PROMPT), 32)]
    assert calls == []
    hook.remove()
    assert torch.equal(runner.prompt_logits(PROMPT), expected)
    assert calls == [4]


def test_a_hook_that_changes_a_layers_result_is_heeded(runner: ModelRunner) -> None:
    expected = runner.prompt_logits(PROMPT)
    hook = fused_layers(runner)[1].register_forward_hook(lambda layer, args, output: output + 1)
    changed = runner.prompt_logits(PROMPT)
    hook.remove()
    assert not torch.allclose(changed, expected, atol=1e-2)
    assert torch.equal(runner.prompt_logits(PROMPT), expected)


def _with_a_part_doubled(states: torch.Tensor) -> torch.Tensor:
    states[:, 3:5] *= 2
    return states


@pytest.mark.parametrize(
    "change",
    [lambda states: states * 1.0, lambda states: states.mul_(2), _with_a_part_doubled],
    ids=["another object", "in place", "a part in place"],
)
def test_a_model_that_changes_what_its_layers_hand_on_is_found_out(
    runner: ModelRunner, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    layers = runner._model.model.model.layers
    own = layers[2].forward
    layers[2].forward = lambda hidden_states, **options: own(change(hidden_states), **options)
    with pytest.raises(RuntimeError, match="from layer 1 to layer 2"):
        runner.prompt_logits(PROMPT)
    layers[2].forward = own
    assert runner.prompt_logits(PROMPT).isfinite().all()


def test_a_model_that_calls_its_layers_in_another_order_is_found_out(runner: ModelRunner) -> None:
    layers = runner._model.model.model.layers
    layers[1], layers[2] = layers[2], layers[1]
    with pytest.raises(RuntimeError, match="from layer 0 to layer 1"):
        runner.prompt_logits(PROMPT)


def test_nothing_of_a_step_is_kept_after_it(runner: ModelRunner) -> None:
    runner.prompt_logits(PROMPT)
    (chain,) = {layer.chain[0] for layer in fused_layers(runner) if layer.chain}
    assert chain._result is None


class Layer(nn.Module):
    """What a chain sees of a layer."""

    def __init__(self, shape: int | None) -> None:
        super().__init__()
        self.kernel = None if shape is None else SimpleNamespace(shape=shape)
        self.chain: tuple[Any, int] | None = None


@pytest.mark.parametrize(
    ("shapes", "positions", "copied", "places"),
    [
        ([1, 1, 1, 1], "aaaa", (), [0, 1, 2, 3]),
        ([1, 1, 2, 2], "aaaa", (), [0, 1, 0, 1]),
        ([1, None, 1, 1], "aaaa", (), [None, None, 0, 1]),
        ([1, 1, 1, 1], "aabb", (), [0, 1, 0, 1]),
        ([1, 1, 1, 1], "abab", (), [None] * 4),
        ([1, 1, 1, 1], "aaaa", (2,), [0, 1, 0, 1]),
    ],
    ids=["all", "another shape", "in parts", "other positions", "positions by turns", "another object"],
)
def test_a_chain_ends_where_its_layers_differ(
    shapes: list[int | None], positions: str, copied: tuple[int, ...], places: list[int | None]
) -> None:
    tables = {name: object() for name in positions}
    calls, given = [], torch.zeros(1, 1, 1)
    for index, (shape, name) in enumerate(zip(shapes, positions, strict=True)):
        output = torch.zeros(1, 1, 1)
        hidden_states = given.clone() if index in copied else given
        calls.append(LayerCall(Layer(shape), (hidden_states,), {"position_embeddings": tables[name]}, output))
        given = output
    chain_layers(calls, RotaryTables())
    assert [call.layer.chain and call.layer.chain[1] for call in calls] == places
    assert len({id(call.layer.chain[0]) for call in calls if call.layer.chain}) == places.count(0)


def test_a_layer_that_is_called_twice_is_in_no_chain() -> None:
    layer, states = Layer(1), torch.zeros(1, 1, 1)
    chain_layers([LayerCall(layer, (states,), {}, states)] * 2, RotaryTables())
    assert layer.chain is None


class ChangingModel(nn.Module):
    """Doubles in place what the second layer gets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, input_ids: torch.Tensor, **ignored: object) -> torch.Tensor:
        states = input_ids[..., None].expand(-1, -1, 4).float()
        for index, layer in enumerate(self.layers):
            states = layer(states.mul_(2) if index == 2 else states)
        return states


def test_layers_between_which_a_model_changes_something_in_place_are_in_no_chain() -> None:
    model = ChangingModel()
    calls = [replace(call, layer=Layer(1)) for call in _calls(list(model.layers), model, torch.arange(3), torch.arange(3))]
    chain_layers(calls, RotaryTables())
    assert [call.layer.chain and call.layer.chain[1] for call in calls] == [0, 1, 0, 1]
