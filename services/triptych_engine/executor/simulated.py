"""An executor that computes nothing: a step takes as long as its costs say, and answers are made-up words.

Everything around it is real: scheduler, blocks, prefix cache, queue, sessions. So it shows what routing, scaling and failures do to
a load on a machine that could not run one of its engines.
"""

from __future__ import annotations

import bisect
import itertools
import random
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tokenizers import Tokenizer
from triptych.errors import StartupError, UnimplementedError
from triptych_common.constraints.spec import ConstraintSpec

from triptych_engine.executor.protocol import ExecutorInfo
from triptych_engine.scheduling.output import SchedulerOutput, StepResult
from triptych_engine.scheduling.request import TokenLogprobs
from triptych_engine.scheduling.step_costs import StepCosts
from triptych_engine.settings import EngineSettings

#: Words that stay one token if an answer is tokenized again, as in the next turn of a conversation.
_FIRST_WORD, _NEXT_WORD = re.compile(r"[A-Z][a-z]+"), re.compile(r"[Ġ▁][a-z]{2,}")


_Seconds = Annotated[float, Field(ge=0, le=60)]
#: (number of tokens, seconds) of points, between which lines are straight.
Curve = tuple[tuple[Annotated[int, Field(ge=1)], _Seconds], ...]


@dataclass(frozen=True, slots=True)
class SimulatedCosts:
    """What a step takes, in seconds.

    Attributes:
        steps: what the scheduler begins to estimate with, and what a step takes where there is no curve.
        curve: of a step by its number of tokens, prompt tokens and those that are decoded. Few tokens take as long as reading the
            weights does, and many as long as multiplying does; so it is not a straight line.
        sequence_s: what each sequence that decodes adds to the curve: its logits and its sampling.
        context_s: what one adds for each token of its context, because it attends to it.
        pair_s: of a prompt, for each of its tokens and each token before that one.
        step_noise: standard deviation of the logarithm of a step's time. 0: equal steps take equally long.
    """

    steps: StepCosts
    curve: Curve = ()
    sequence_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    step_noise: float = 0.0

    def step_s(self, num_decoding: int, num_prompt_tokens: int) -> float:
        """A step, without attention."""
        if len(self.curve) < 2:
            return self.steps.step_s(num_decoding, num_prompt_tokens)
        num_tokens = num_decoding + num_prompt_tokens
        above = min(max(bisect.bisect_left(self.curve, (num_tokens,)), 1), len(self.curve) - 1)
        (low, low_s), (high, high_s) = self.curve[above - 1 : above + 1]
        return low_s + (high_s - low_s) * max(num_tokens - low, 0) / (high - low) + num_decoding * self.sequence_s

    def attention_s(self, num_tokens: int, context: int) -> float:
        """Of a sequence that computes so many tokens behind so many others."""
        if num_tokens == 1:
            return self.context_s * context
        return self.pair_s * num_tokens * (context + num_tokens / 2)

    def noise(self, rng: random.Random) -> float:
        """A factor on a step's time, 1 on average. Nothing is drawn for costs without noise."""
        return rng.lognormvariate(-(self.step_noise**2) / 2, self.step_noise) if self.step_noise else 1.0


class SimulatedEngine(BaseModel):
    """What a simulated engine can do. `python -m benchmarks.steps --costs-file FILE` measures it on an engine that computes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Seconds that each step takes, that each decoding sequence adds, and each prompt token.
    fixed_s: float = Field(gt=0, le=60)
    decode_s: _Seconds
    prompt_token_s: float = Field(gt=0, le=60)
    #: See SimulatedCosts. Without these two, a step takes what the three above say.
    curve: Curve = ()
    sequence_s: _Seconds = 0.0
    #: Without them, long contexts cost no more than short ones.
    context_s: float = Field(default=0.0, ge=0, le=1)
    pair_s: float = Field(default=0.0, ge=0, le=1)
    #: Without it, equal steps take equally long.
    step_noise: float = Field(default=0.0, ge=0, le=1)
    #: Size of its KV cache.
    num_blocks: int = Field(ge=1, le=1 << 24)

    @field_validator("curve")
    @classmethod
    def _rises(cls, curve: Curve) -> Curve:
        if any(low >= high or low_s > high_s for (low, low_s), (high, high_s) in itertools.pairwise(curve)):
            raise ValueError("each point must have more tokens than the one before it, and not less time")
        return curve

    @classmethod
    def read(cls, path: Path) -> SimulatedEngine:
        """From a file of JSON. Raises StartupError."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise StartupError(f"simulate: cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            details = error.errors()[0]
            told = ": ".join([*map(str, details["loc"]), details["msg"]])
            raise StartupError(f"simulate: {path}: {told}") from error

    @property
    def costs(self) -> SimulatedCosts:
        steps = StepCosts(self.fixed_s, self.decode_s, self.prompt_token_s)
        return SimulatedCosts(steps, self.curve, self.sequence_s, self.context_s, self.pair_s, self.step_noise)


@dataclass(slots=True)
class _Sequence:
    last_token_id: int
    num_tokens: int
    num_computed_tokens: int
    has_output: bool
    has_logprobs: bool


class SimulatedExecutor:
    """Implements `Executor` by waiting.

    A token depends on the one before it and on its position. So an answer that goes on at another engine is the same.

    Args:
        model_path: directory of the model; of its files, the tokenizer is read.
        vocab_size: number of token ids of the model.
        settings: of the engine that it is the executor of.
    """

    def __init__(self, engine: SimulatedEngine, model_path: Path, vocab_size: int, settings: EngineSettings) -> None:
        self._engine, self._model_path, self._vocab_size, self._settings = engine, model_path, vocab_size, settings
        self._costs, self._rng = engine.costs, random.Random()
        self._first_words: Sequence[int] = ()
        self._next_words: Sequence[int] = ()
        self._sequences: dict[str, _Sequence] = {}
        #: Steps that were launched, each with its end on the clock of time.perf_counter.
        self._launched: dict[int, tuple[SchedulerOutput, float]] = {}
        self._idle_from_s = 0.0

    def load(self) -> ExecutorInfo:
        vocabulary = _vocabulary(self._model_path)
        self._first_words = sorted(token_id for word, token_id in vocabulary.items() if _FIRST_WORD.fullmatch(word))
        self._next_words = sorted(token_id for word, token_id in vocabulary.items() if _NEXT_WORD.fullmatch(word))
        if not self._first_words or not self._next_words:
            raise StartupError(f"simulate: the tokenizer in {self._model_path} has no words to answer with")
        return ExecutorInfo(
            vocab_size=self._vocab_size,
            num_blocks=self._engine.num_blocks,
            block_size=self._settings.block_size,
            max_num_batched_tokens=self._settings.token_budget(on_cpu=True, generates=True),
            media_traits="a simulated engine takes no media",
            embedding_bytes=1,
            costs=self._costs.steps,
        )

    def launch(self, scheduled: SchedulerOutput) -> None:
        # A device computes one step after the other.
        self._idle_from_s = max(time.perf_counter(), self._idle_from_s)
        for request_id in scheduled.dropped:
            self._sequences.pop(request_id, None)
        for new in scheduled.new:
            num_tokens, wants = len(new.token_ids), new.sampling.logprobs is not None
            has_output = num_tokens > new.num_prompt_tokens
            sequence = _Sequence(new.token_ids[-1], num_tokens, new.num_computed_tokens, has_output, wants)
            self._sequences[new.request_id] = sequence
        self._idle_from_s += self._step_s(scheduled)
        self._launched[scheduled.step_id] = scheduled, self._idle_from_s

    def _step_s(self, scheduled: SchedulerOutput) -> float:
        if not scheduled.num_scheduled_tokens:
            return 0.0
        seconds = self._costs.step_s(scheduled.num_decoding, scheduled.num_prompt_tokens)
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            sequence = self._sequences[request_id]
            seconds += self._costs.attention_s(num_tokens, sequence.num_computed_tokens)
            sequence.num_computed_tokens += num_tokens
        return seconds * self._costs.noise(self._rng)

    def sample(self, step_id: int) -> None:
        """Nothing to do: `result` makes the tokens."""

    def result(self, step_id: int) -> StepResult:
        scheduled, end_s = self._launched.pop(step_id)
        time.sleep(max(0.0, end_s - time.perf_counter()))
        result = StepResult()
        for request_id in scheduled.max_new_tokens:
            if (sequence := self._sequences.get(request_id)) is None:
                continue  # it was dropped by a step that was launched since
            token_id = self._next_token(sequence)
            result.token_ids[request_id] = [token_id]
            if sequence.has_logprobs:
                result.logprobs[request_id] = [TokenLogprobs(token_id, 0.0, 1)]
        return result

    def _next_token(self, sequence: _Sequence) -> int:
        words = self._next_words if sequence.has_output else self._first_words
        token_id = words[crc32(b"%d %d" % (sequence.last_token_id, sequence.num_tokens)) % len(words)]
        sequence.last_token_id, sequence.has_output = token_id, True
        sequence.num_tokens += 1
        return token_id

    def compile_constraint(self, spec: ConstraintSpec) -> Future[Any]:
        refused: Future[Any] = Future()
        refused.set_exception(UnimplementedError("a simulated engine follows no constraints", field="constraint"))
        return refused

    def load_lora(self, name: str) -> Future[Any]:
        raise RuntimeError("adapters are refused before they come here")

    def check_health(self) -> None:
        """It cannot be lost."""

    def free_cache(self) -> None:
        """It has none."""

    def unload(self) -> None:
        """It has no weights."""

    def restore(self) -> None:
        """Nothing was freed."""

    def close(self) -> None:
        """It has no processes."""


def _vocabulary(model_path: Path) -> dict[str, int]:
    try:
        return dict(Tokenizer.from_file(str(model_path / "tokenizer.json")).get_vocab(with_added_tokens=False))
    except Exception as error:  # the tokenizer's errors are of no class of their own
        raise StartupError(f"simulate: cannot read the tokenizer in {model_path}: {error}") from error
