"""The whole runner on a GPU: recorded steps against launched ones, overlapping steps against one after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.builders.engine import GREEDY, a_tiny_llama_config, save_random_model
from support.builders.text_families import HEAD_16, WINDOW
from support.drivers.engine import EngineDriver
from transformers import Gemma3TextConfig, Qwen3MoeConfig
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import Request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device"),
]


SIZES = {**HEAD_16, "hidden_size": 256, "head_dim": 64, "max_position_embeddings": 1024}
CONFIGS = [
    a_tiny_llama_config(hidden_size=256, head_dim=64, max_position_embeddings=1024),
    Gemma3TextConfig(**SIZES, **WINDOW, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128),
]


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda config: config.model_type)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineDriver:
    path: Path = save_random_model(tmp_path_factory.mktemp("gpu"), request.param, dtype=torch.bfloat16)
    sizes = {"max_model_len": 1024, "max_num_seqs": 12, "num_blocks": 800}
    made = EngineDriver(path, dtype=torch.bfloat16, attention="cuda", device="cuda", **sizes)  # type: ignore[arg-type]
    made.runner.warm_up()
    assert made.runner._graphs is not None, "the model can be recorded"
    assert made.runner._model.decoder is not None, "its layers are fused"
    return made


@pytest.mark.parametrize("num_seqs", [1, 3, 12])
def test_a_replayed_step_computes_what_a_launched_one_does(driver: EngineDriver, num_seqs: int):
    runner, graphs = driver.runner, driver.runner._graphs
    new = [NewSequence(f"r{i}", [7 + i, 9, 11 + i], 3, 0, [2 * i + 1], GREEDY) for i in range(num_seqs)]
    ids = [sequence.request_id for sequence in new]
    logits = []
    for runner._graphs in (None, graphs):
        with torch.inference_mode():
            runner.execute(SchedulerOutput(new=new, num_scheduled_tokens=dict.fromkeys(ids, 3)))
            inputs = runner._batch.gather(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(ids, 1)))
            logits.append(runner._forward(inputs, inputs.last_tokens, []).clone())
        runner.execute(SchedulerOutput(dropped=ids))
    similarity = torch.nn.functional.cosine_similarity(logits[0].float(), logits[1].float(), dim=-1)
    assert similarity.min() > 0.999


def test_overlapping_steps_give_the_same_text(driver: EngineDriver):
    samplings = [
        replace(GREEDY, max_tokens=40),
        replace(GREEDY, max_tokens=40, temperature=1.0, seed=1),
        replace(GREEDY, max_tokens=40, temperature=1.0, seed=2, top_p=0.9, top_k=40),
        replace(GREEDY, max_tokens=40, repetition_penalty=1.2, logprobs=2),
    ]

    def generate(async_scheduling: bool) -> dict[str, list[int]]:
        requests = [Request(f"r{i}", [(7 * i + j) % 90 for j in range(20 + 300 * i)], s) for i, s in enumerate(samplings)]
        generated = driver.run(driver.scheduler(caching=False), requests, async_scheduling=async_scheduling)
        return {key: one.token_ids for key, one in generated.items()}

    assert generate(True) == generate(False)
