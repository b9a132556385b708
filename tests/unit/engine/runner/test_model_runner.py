"""The runner's own conduct: what it measures at start, and how many threads it computes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_request, a_scheduler, a_tiny_llama_config, save_random_model
from support.builders.multimodal import build_checkpoint
from transformers import AutoModelForCausalLM
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.media.item import MediaTraits
from triptych_engine.runner import model_runner
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.media_inputs import MediaInputs
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.scheduling.output import SchedulerOutput


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("runner"), a_tiny_llama_config())


def a_runner(path: Path, num_threads: int | None = None, num_threads_while_encoding: int | None = None) -> ModelRunner:
    torch.set_num_threads(num_threads or 1)
    config = RunnerConfig(
        path, "test", 256, 8, 64, 4, 1 << 20,
        num_threads=num_threads, num_threads_while_encoding=num_threads_while_encoding,
    )  # fmt: skip
    return build_runner(config)


def test_the_warm_up_measures_what_steps_cost(path: Path):
    costs = a_runner(path).warm_up()
    assert 0 < costs.fixed_s < 5
    assert 0 <= costs.decode_s < 1
    assert 0 <= costs.prompt_token_s < 1


def test_a_cache_of_half_the_bits_holds_twice_the_tokens_and_costs_little(tmp_path: Path):
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    token_ids = [(7 * i) % 90 for i in range(50)]
    runners = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        config = RunnerConfig(path, "t", 256, 8, 64, 16, 1 << 20, dtype=torch.float32, kv_cache_dtype=dtype)
        runners.append(build_runner(config))
    assert runners[1].num_blocks == 2 * runners[0].num_blocks
    assert runners[2].num_blocks == int(4 * 16 / (16 + 4) * runners[0].num_blocks), "a head of 16 numbers has a scale of 4 bytes"
    exact, *narrow = (runner.prompt_logits(token_ids) for runner in runners)
    for logits in narrow:
        assert exact.dtype == logits.dtype == torch.float32
        assert 0 < (exact - logits).square().mean().sqrt() < 0.02 * exact.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("kv_cache_dtype", "attention"),
    [
        (torch.float32, "cpu"), (torch.bfloat16, "cpu"), (torch.int8, "cpu"), (torch.float32, "torch"), (torch.bfloat16, "torch"),
    ],
)  # fmt: skip
def test_any_type_of_the_model_goes_with_any_of_the_cache(
    path: Path, dtype: torch.dtype, kv_cache_dtype: torch.dtype, attention: str
):
    config = RunnerConfig(path, "t", 256, 8, 64, 16, 1 << 20, dtype=dtype, kv_cache_dtype=kv_cache_dtype, attention=attention)
    runner = build_runner(config)
    token_ids = [(7 * i) % 90 for i in range(50)]
    with torch.inference_mode():
        exact = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(torch.tensor([token_ids])).logits[0]
    got = runner.prompt_logits(token_ids, num_chunks=2).float()
    assert torch.nn.functional.cosine_similarity(got, exact, dim=-1).min() > 0.999


@pytest.mark.parametrize("attention", ["torch", "cuda"])
def test_a_cache_in_int8_is_for_the_cpu_kernels(path: Path, attention: str):
    config = RunnerConfig(path, "t", 256, 8, 64, 16, 1 << 20, kv_cache_dtype=torch.int8, attention=attention)
    with pytest.raises(StartupError, match="int8 needs the CPU kernels"):
        build_runner(config)


def test_a_structure_that_is_wrong_is_seen_though_the_cache_is_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The bound for a rounded cache would let this pass; the check before it does not."""
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    own = ModelRunner._forward
    generator = torch.Generator().manual_seed(0)

    def inexact(self: ModelRunner, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits = own(self, *args, **kwargs)
        return logits + 0.05 * logits.std() * torch.randn(logits.shape, generator=generator)

    config = RunnerConfig(path, "t", 256, 8, 64, 16, 1 << 20, dtype=torch.float32, kv_cache_dtype=torch.bfloat16)
    build_runner(config)
    monkeypatch.setattr(ModelRunner, "_forward", inexact)
    with pytest.raises(UnsupportedModelError, match=r"0\.9999 is required"):
        build_runner(config)


def test_a_prompts_logits_do_not_depend_on_its_chunks(path: Path):
    runner = a_runner(path)
    token_ids = [(7 * i) % 90 for i in range(50)]
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([token_ids])).logits[0]
    for num_chunks in (1, 2, 7):
        torch.testing.assert_close(runner.prompt_logits(token_ids, num_chunks=num_chunks), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("embed", [lambda embeds: embeds.flip(-1), lambda embeds: 1 / 0], ids=["wrong", "fails"])
def test_media_are_refused_where_embeddings_are_not_taken_for_their_tokens(
    embed: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint = build_checkpoint("llava_siglip", tmp_path)
    assert isinstance(a_runner(checkpoint).media_traits, MediaTraits)
    own = MediaInputs.embed
    monkeypatch.setattr(MediaInputs, "embed", lambda *arguments: embed(own(*arguments)))
    assert a_runner(checkpoint).media_traits == "llava does not run on embeddings alone; media items cannot be taken"


def test_steps_while_media_are_encoded_leave_cores_alone(path: Path):
    runner = a_runner(path, num_threads=2, num_threads_while_encoding=1)
    runner.execute(SchedulerOutput(awaits_embeddings=True))
    assert torch.get_num_threads() == 1
    runner.execute(SchedulerOutput(awaits_embeddings=False))
    assert torch.get_num_threads() == 2


def test_without_a_setting_threads_stay_as_they_are(path: Path):
    runner = a_runner(path)
    torch.set_num_threads(2)
    runner.execute(SchedulerOutput(awaits_embeddings=True))
    assert torch.get_num_threads() == 2


def test_a_step_is_waited_for_though_it_samples_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Else its time would go to the next one, and the chunks of a long prompt would all be on the device before anything else."""
    runner = a_runner(path)
    waited: list[torch.device] = []
    monkeypatch.setattr(model_runner, "end_of_work", lambda device: lambda: waited.append(device))
    scheduler = a_scheduler(max_num_batched_tokens=8)
    scheduler.add(a_request("r", list(range(12)), max_tokens=1))
    for num_steps in (1, 2):
        scheduled = scheduler.schedule()
        launched = runner.sample(runner.forward(scheduled))
        assert (not launched.samples) == (num_steps == 1)
        scheduler.update_from_output(scheduled, launched.result())
        assert waited == [torch.device("cpu")] * num_steps


def test_events_and_streams_are_those_of_the_device_that_was_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch):
    """The thread's own device is what they go to, and it is the first one unless somebody says so."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    second = torch.device("cuda:1")
    with contextlib.suppress(RuntimeError, AssertionError):  # there is no such device here
        build_runner(RunnerConfig(path, "test", 256, 8, 64, 4, 1 << 20, device=second))
    assert chosen == [second]


def test_text_does_not_depend_on_the_threads(path: Path):
    def generate(awaiting: list[bool]) -> list[int]:
        runner, scheduler = a_runner(path, num_threads=2, num_threads_while_encoding=1), a_scheduler()
        scheduler.add(a_request("r", [5, 6, 7, 8]))
        tokens = []
        for awaits in awaiting:
            scheduled = scheduler.schedule()
            scheduled.awaits_embeddings = awaits
            for output in scheduler.update_from_output(scheduled, runner.execute(scheduled)):
                tokens += output.token_ids
        return tokens

    expected = generate([False] * 8)
    assert len(expected) == 8
    assert generate([False, True] * 4) == expected
