"""Requests with adapters through scheduler and runner: texts, blocks of the KV cache, and what is held."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.builders.lora import peft_logits, save_adapter
from support.drivers.engine import EngineDriver
from triptych.errors import StartupError
from triptych_common.model.blocks import adapter_salt
from triptych_common.model.pooling import PoolingModel
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.scheduling.request import Request

NAMES = ("one", "two", "three")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lora")
    save_random_model(root / "base", a_tiny_llama_config(), dtype=torch.bfloat16)
    for seed, name in enumerate(NAMES):
        save_adapter(root / "base", root / "loras" / name, seed, std=0.3)
    return root


@pytest.fixture(scope="module")
def driver(folder: Path) -> EngineDriver:
    return EngineDriver(folder / "base", lora_dir=folder / "loras")


def with_adapter(driver: EngineDriver, request: Request, name: str | None) -> Request:
    """As the servicer prepares it."""
    if name is not None:
        loaded = driver.executor.load_lora(name)
        request.lora, request.lora_digest, request.prepared = name, loaded.result(60).digest, loaded
        request.cache_salt = adapter_salt(request.cache_salt, request.lora_digest)
    return request


def a_prompt(seed: int, length: int) -> list[int]:
    return [(i * (seed + 3) * 37 + seed) % 90 for i in range(length)]


def assert_follows(folder: Path, name: str | None, prompt: Sequence[int], text: Sequence[int]) -> None:
    """The text is the greedy one of transformers and PEFT."""
    logits = peft_logits(folder / "base", None if name is None else folder / "loras" / name, [*prompt, *text])
    assert list(text) == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_equal_prompts_with_other_adapters_share_no_blocks(driver: EngineDriver, folder: Path):
    prompt, scheduler = a_prompt(0, 50), driver.scheduler()
    for turn in range(2):
        requests = {name: with_adapter(driver, a_request(f"{name}{turn}", prompt, max_tokens=6), name) for name in (None, *NAMES)}
        for name, request in requests.items():
            generated = driver.run(scheduler, [request])[request.request_id]
            assert_follows(folder, name, prompt, generated.token_ids)
            assert request.num_cached_tokens == (48 if turn else 0)
    assert len({request.block_hashes[0] for request in requests.values()}) == 4


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from([None, *NAMES]), st.integers(1, 60), st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=8
    ),
    st.sampled_from([14, 128]),
)
def test_any_mixture_gives_each_its_text_and_leaves_nothing_held(
    driver: EngineDriver, folder: Path, shapes: list[tuple[str | None, int, int, int]], num_blocks: int
):
    """Also with so few blocks that sequences are preempted."""
    scheduler = driver.scheduler(num_blocks=num_blocks)
    requests, arrivals = [], []
    for number, (name, length, num_tokens, arrival) in enumerate(shapes):
        requests.append(with_adapter(driver, a_request(str(number), a_prompt(number, length), max_tokens=num_tokens), name))
        arrivals.append(arrival)
    generated = driver.run(scheduler, requests, arrivals=arrivals)
    for request, (name, length, num_tokens, _) in zip(requests, shapes, strict=True):
        text = generated[request.request_id].token_ids
        assert len(text) == num_tokens or text[-1] in request.sampling.stop_token_ids
        assert_follows(folder, name, a_prompt(int(request.request_id), length), text)
    assert not driver.runner._lora_rows._adapters
    store = driver.runner.loras
    assert store is not None
    del request, requests
    store._kept.clear()
    gc.collect()
    assert not store._alive


def test_what_is_replaced_on_disk_changes_new_requests_only(folder: Path, tmp_path: Path):
    loras = tmp_path / "loras"
    save_adapter(folder / "base", loras / "a", 5, std=0.3)
    driver, prompt = EngineDriver(folder / "base", lora_dir=loras), a_prompt(1, 40)
    old = with_adapter(driver, a_request("old", prompt, max_tokens=4), "a")
    save_adapter(folder / "base", tmp_path / "old" / "a", 5, std=0.3)
    save_adapter(folder / "base", loras / "a", 6, std=0.3)
    new = with_adapter(driver, a_request("new", prompt, max_tokens=4), "a")
    generated = driver.run(driver.scheduler(), [old, new])
    logits = [peft_logits(folder / "base", one, prompt)[-1] for one in (tmp_path / "old" / "a", loras / "a")]
    assert [generated[name].token_ids[0] for name in ("old", "new")] == [one.argmax().item() for one in logits]
    assert old.lora_digest != new.lora_digest


@pytest.mark.parametrize(("dtype", "quantization"), [(torch.bfloat16, "none"), (torch.float32, "none"), (torch.bfloat16, "int8")])
def test_a_row_does_not_depend_on_the_others(folder: Path, dtype: torch.dtype, quantization: str):
    """With --batch-invariant to the bit, whether the others have adapters or not."""
    driver = EngineDriver(
        folder / "base", dtype=dtype, quantization=quantization, lora_dir=folder / "loras", batch_invariant=True, max_num_seqs=8
    )
    names = [None, "one", "two", "one", None, "three", "one"]

    def of(numbers: Sequence[int]) -> dict[str, list[float]]:
        requests = []
        for number in numbers:
            request = a_request(str(number), a_prompt(number, 5 + 3 * number), max_tokens=5, logprobs=2)
            requests.append(with_adapter(driver, request, names[number]))
        generated = driver.run(driver.scheduler(caching=False), requests)
        return {name: [entry.logprob for entry in one.logprobs] for name, one in generated.items()}

    together = of(range(len(names)))
    for number in range(len(names)):
        assert of([number])[str(number)] == together[str(number)]


def test_adapters_are_there_again_after_the_model_was_unloaded(folder: Path):
    driver, prompt = EngineDriver(folder / "base", lora_dir=folder / "loras"), a_prompt(2, 20)

    def text() -> list[int]:
        return driver.run(driver.scheduler(), [with_adapter(driver, a_request("r", prompt, max_tokens=5), "one")])["r"].token_ids

    before, store = text(), weakref.ref(driver.runner.loras)
    driver.executor.free_cache()
    driver.runner = None
    driver.executor.unload()
    gc.collect()
    assert store() is None
    driver.executor.restore()
    assert text() == before


def test_a_directory_that_is_not_there_is_named(folder: Path, tmp_path: Path):
    with pytest.raises(StartupError, match="lora_dir: there is no directory"):
        EngineDriver(folder / "base", lora_dir=tmp_path / "absent")


def test_a_model_that_embeds_takes_none_and_starts(folder: Path, caplog: pytest.LogCaptureFixture):
    pooling = PoolingModel("embed", False, 32)
    config = RunnerConfig(folder / "base", "m", 256, 8, 64, 16, 1 << 20, lora_dir=folder / "loras", pooling=pooling)
    assert build_runner(config).loras is None
    assert "m takes no adapters" in caplog.text
