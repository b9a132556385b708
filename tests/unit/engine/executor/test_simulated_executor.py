"""The simulated executor: its steps take their time, its answers repeat, and what is around it is real."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.builders.tokenizer import VOCAB_SIZE, byte_level_tokenizer
from triptych.errors import StartupError, UnimplementedError
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.core import EngineCore
from triptych_engine.executor.simulated import SimulatedEngine, SimulatedExecutor
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import Request, SamplingParams
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.settings import EngineSettings

BLOCK_SIZE = 4
COSTS = {"fixed_s": 0.01, "decode_s": 0.002, "prompt_token_s": 0.001, "num_blocks": 32}


class Simulated:
    """A core that is stepped by hand."""

    def __init__(self, folder: Path, *, async_scheduling: bool = False) -> None:
        byte_level_tokenizer().save(str(folder / "tokenizer.json"))
        executor = SimulatedExecutor(SimulatedEngine(**COSTS), folder, VOCAB_SIZE, EngineSettings(block_size=BLOCK_SIZE))
        loaded = executor.load()
        self.kv_cache = KVCacheManager(loaded.num_blocks, loaded.block_size)
        self.scheduler = Scheduler(self.kv_cache, max_num_seqs=8, max_num_batched_tokens=64, max_waiting=100, max_model_len=256)
        self.outputs: list[SequenceOutput] = []
        self.core = EngineCore(
            self.scheduler,
            executor,
            lambda step, outputs, load: self.outputs.extend(outputs),
            async_scheduling=async_scheduling,
        )
        self.executor = executor

    def answer(self, prompt: list[int], max_tokens: int = 6, carried: Sequence[int] = ()) -> list[int]:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        self.scheduler.add(Request("r", prompt, sampling, carried_token_ids=carried))
        while self.scheduler.has_work:
            self.core.step()
        outputs, self.outputs = self.outputs, []
        assert outputs[-1].finish_reason is not None
        assert outputs[-1].error is None
        return [token_id for output in outputs for token_id in output.token_ids]


@pytest.fixture
def simulated(tmp_path: Path) -> Simulated:
    return Simulated(tmp_path)


def test_answers_repeat_and_depend_on_the_prompt(simulated: Simulated) -> None:
    prompt = list(range(10, 30))
    first = simulated.answer(prompt)
    assert len(first) == 6
    assert simulated.answer(prompt) == first
    assert simulated.answer([*prompt, 31]) != first


def test_an_answer_goes_on_elsewhere_as_it_would_have(simulated: Simulated) -> None:
    prompt = list(range(10, 30))
    whole = simulated.answer(prompt)
    assert simulated.answer(prompt, carried=whole[:4]) == whole[4:]


def test_an_answer_has_the_same_tokens_when_it_is_read_again(simulated: Simulated, tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    answer = simulated.answer(list(range(10, 30)), 12)
    assert tokenizer.encode(tokenizer.decode(answer)).ids == answer


def test_prefixes_are_found(simulated: Simulated) -> None:
    prompt = list(range(10, 30))
    simulated.answer([*prompt, *simulated.answer(prompt)])
    assert simulated.kv_cache.prefix_cache_hits == len(prompt) + 4  # the prompt, and the whole blocks of the answer
    simulated.kv_cache.pool.check_integrity([])


def test_the_load_tells_what_came_lately(simulated: Simulated) -> None:
    core = simulated.core
    for number in range(3):
        core.add(Request(f"r{number}", list(range(10, 50)), SamplingParams(max_tokens=4, temperature=0.0)))
    core._run_commands(block=False)
    assert core.load.num_recent == pytest.approx(3, abs=0.1)
    while simulated.scheduler.has_work:
        core.step()
    assert 2 < core.current_load().num_recent < 3, "they came lately, although none is there"


def test_a_request_that_leaves_takes_no_other_along(tmp_path: Path) -> None:
    simulated = Simulated(tmp_path, async_scheduling=True)
    for name in "abc":
        simulated.scheduler.add(Request(name, list(range(10, 30)), SamplingParams(max_tokens=6, temperature=0.0)))
    for _ in range(3):
        simulated.core.step()
    simulated.scheduler.abort(["a"])
    while simulated.scheduler.has_work or simulated.core.num_in_flight:
        simulated.core.step()
    ends = {output.request_id: output for output in simulated.outputs if output.finish_reason is not None}
    assert {name: end.error for name, end in ends.items()} == {"b": None, "c": None}


def test_steps_take_what_they_cost(simulated: Simulated) -> None:
    start_s = time.perf_counter()
    simulated.answer(list(range(10, 50)), 11)
    needed_s = 0.01 + 40 * 0.001 + 10 * (0.01 + 0.002)
    assert needed_s <= time.perf_counter() - start_s < needed_s + 0.5


def test_constraints_are_refused(simulated: Simulated) -> None:
    with pytest.raises(UnimplementedError, match="simulated engine"):
        simulated.executor.compile_constraint(ConstraintSpec("regex", "a")).result(1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read"),
        ("{", "Invalid JSON"),
        (json.dumps({**COSTS, "fixed_s": 0}), "fixed_s"),
        (json.dumps({**COSTS, "prompt_token_s": "nan"}), "prompt_token_s"),
        (json.dumps({**COSTS, "other": 1}), "other"),
        (json.dumps({"fixed_s": 1}), "decode_s"),
        (json.dumps({**COSTS, "curve": [[1, 0.1], [1, 0.2]]}), "curve: .*more tokens"),
        (json.dumps({**COSTS, "curve": [[1, 0.2], [2, 0.1]]}), "curve: .*not less time"),
        (json.dumps({**COSTS, "curve": [[0, 0.2]]}), "curve"),
        (json.dumps({**COSTS, "step_noise": -0.1}), "step_noise"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError, match=told) as refused:
        SimulatedEngine.read(path)
    assert str(path) in str(refused.value)


def test_a_file_without_noise_is_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    assert SimulatedEngine.read(path).costs.step_noise == 0
    path.write_text(json.dumps({**COSTS, "step_noise": 0.1}))
    assert SimulatedEngine.read(path).costs.step_noise == 0.1


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="tokenizer"):
        SimulatedExecutor(SimulatedEngine(**COSTS), tmp_path, VOCAB_SIZE, EngineSettings()).load()  # type: ignore[arg-type]
