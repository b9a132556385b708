"""Whisper's decoder on the paged path: transformers' own tokens, in batches, after prefix hits and preemptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_request
from support.builders.whisper import a_sound, build_whisper, whisper_tokenizer
from support.drivers.engine import EngineDriver, Generated
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.media.item import Embeddings, EmbeddingTensor, MediaItem, Modality, PromptMedia
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler

pytestmark = pytest.mark.model
NUM_STATES, NUM_SOUNDS, MAX_TOKENS = 1500, 4, 24
START, ENGLISH, GERMAN, TRANSCRIBE, TRANSLATE, PREVIOUS, NO_TIMESTAMPS = whisper_tokenizer().convert_tokens_to_ids(
    ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>", "<|startofprev|>", "<|notimestamps|>"]
)
PROMPT = (START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS)
#: More than a block, with text before.
LONG_PROMPT = (PREVIOUS, *range(40, 80), START, GERMAN, TRANSLATE, NO_TIMESTAMPS)


class Checkpoint:
    """A tiny checkpoint, its encoder's states of a few sounds, and what transformers generates for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model = WhisperForConditionalGeneration.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        self.config = self._model.generation_config
        extractor = WhisperFeatureExtractor.from_pretrained(path)
        sounds = [a_sound(seed) for seed in range(NUM_SOUNDS)]
        self._features = extractor(sounds, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features
        with torch.inference_mode():
            self._states = self._model.model.encoder(self._features).last_hidden_state
        self._known: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    @property
    def embeddings(self) -> dict[bytes, Embeddings]:
        tensors = (EmbeddingTensor("float32", tuple(s.shape), bytearray(s.contiguous().numpy().tobytes())) for s in self._states)
        return {_key(sound): Embeddings({"embeds": tensor}) for sound, tensor in enumerate(tensors)}

    def greedy(self, sound: int, prompt: tuple[int, ...]) -> list[int]:
        if (sound, prompt) not in self._known:
            output = self._model.generate(
                self._features[sound : sound + 1],
                decoder_input_ids=torch.tensor([prompt]),
                max_new_tokens=MAX_TOKENS,
                return_timestamps=False,
                return_dict_in_generate=True,
            )
            self._known[sound, prompt] = output.sequences[0, len(prompt) :].tolist()
        return self._known[sound, prompt]

    def request(self, name: str, sound: int, prompt: Sequence[int] = PROMPT) -> Request:
        """A request to the engine, with what the frontend bans."""
        request = a_request(
            name,
            list(prompt),
            max_tokens=MAX_TOKENS,
            bad_token_ids=tuple(self.config.suppress_tokens),
            first_bad_token_ids=tuple(self.config.begin_suppress_tokens),
            stop_token_ids=frozenset({self.config.eos_token_id}),
        )
        request.media = PromptMedia((MediaItem(0, Modality.AUDIO, _key(sound), num_tokens=NUM_STATES),), is_beside=True)
        return request


def _key(sound: int) -> bytes:
    return b"sound %d" % sound


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(build_whisper(tmp_path_factory.mktemp("whisper")))


@pytest.fixture(scope="module", params=["torch", *(["cpu"] if isas_of_this_cpu() else [])])
def engine(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> EngineDriver:
    return EngineDriver(checkpoint.path, attention=request.param, max_num_seqs=8, num_blocks=64)


def _scheduler(engine: EngineDriver, **options: int) -> Scheduler:
    return engine.scheduler(max_embeddings=NUM_SOUNDS * NUM_STATES, **options)


def _run(
    engine: EngineDriver,
    scheduler: Scheduler,
    checkpoint: Checkpoint,
    wanted: dict[str, tuple[int, tuple[int, ...]]],
    **options: object,
) -> dict[str, Generated]:
    """Run requests, and check that each has transformers' tokens. wanted: name -> sound and prompt."""
    requests = [checkpoint.request(name, *what) for name, what in wanted.items()]
    generated = engine.run(scheduler, requests, embeddings=checkpoint.embeddings, **options)  # type: ignore[arg-type]
    for name, (sound, prompt) in wanted.items():
        assert generated[name].token_ids == checkpoint.greedy(sound, prompt), name
    return generated


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT], ids=["short", "long"])
def test_alone(engine: EngineDriver, checkpoint: Checkpoint, prompt: tuple[int, ...]) -> None:
    for sound in range(NUM_SOUNDS):
        _run(engine, _scheduler(engine), checkpoint, {"r": (sound, prompt)})


def test_each_sound_has_its_own_text(checkpoint: Checkpoint) -> None:
    texts = [checkpoint.greedy(sound, prompt) for sound in range(NUM_SOUNDS) for prompt in (PROMPT, LONG_PROMPT)]
    assert len(set(map(tuple, texts))) == len(texts)
    assert sum(len(set(text)) > 2 for text in texts) > len(texts) // 2


@pytest.mark.parametrize("max_num_batched_tokens", [2048, 19], ids=["whole prompts", "chunks"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_ragged_batches(engine: EngineDriver, checkpoint: Checkpoint, max_num_batched_tokens: int, async_scheduling: bool) -> None:
    wanted = {f"r{i}": (i % NUM_SOUNDS, (PROMPT, LONG_PROMPT)[i % 3 == 1]) for i in range(10)}
    scheduler = _scheduler(engine, max_num_batched_tokens=max_num_batched_tokens)
    _run(engine, scheduler, checkpoint, wanted, arrivals=[0, 0, 0, 1, 3, 3, 7, 8, 20, 40], async_scheduling=async_scheduling)


def test_prefix_hits_are_of_the_same_sound_only(engine: EngineDriver, checkpoint: Checkpoint) -> None:
    scheduler = _scheduler(engine)
    for name, sound, num_cached in (("first", 0, 0), ("same", 0, 32), ("other", 1, 0), ("same again", 0, 32)):
        last = _run(engine, scheduler, checkpoint, {name: (sound, LONG_PROMPT)})[name].last
        assert last is not None
        assert last.usage is not None
        assert last.usage[2] == num_cached
        assert last.media is not None
        assert set(last.media.num_tokens.values()) == {0}


def test_prefix_hit_whose_slot_was_lost(engine: EngineDriver, checkpoint: Checkpoint) -> None:
    """The blocks are found, and the slot is filled again."""
    scheduler = _scheduler(engine, num_cross_slots=1)
    for name, sound, num_cached in (("first", 0, 0), ("other", 1, 0), ("same", 0, 32)):
        last = _run(engine, scheduler, checkpoint, {name: (sound, LONG_PROMPT)})[name].last
        assert last is not None
        assert last.usage is not None
        assert last.usage[2] == num_cached


def test_preempted_requests_go_on(engine: EngineDriver, checkpoint: Checkpoint) -> None:
    scheduler = _scheduler(engine, num_blocks=7)  # each needs 2 and then up to 5
    wanted = {f"r{i}": (i, (PROMPT, LONG_PROMPT)[i % 2]) for i in range(NUM_SOUNDS)}
    _run(engine, scheduler, checkpoint, wanted)
    assert scheduler.num_preemptions


def test_fewer_slots_than_requests(engine: EngineDriver, checkpoint: Checkpoint) -> None:
    scheduler = _scheduler(engine, num_cross_slots=2)
    _run(engine, scheduler, checkpoint, {f"r{i}": (i % NUM_SOUNDS, PROMPT) for i in range(9)})


def test_room_for_one_item_at_a_time(engine: EngineDriver, checkpoint: Checkpoint) -> None:
    scheduler = engine.scheduler(max_embeddings=NUM_STATES)
    _run(engine, scheduler, checkpoint, {f"r{i}": (i % NUM_SOUNDS, PROMPT) for i in range(6)})


class _Guesser:
    """A drafter that knows what comes, and is wrong at every fourth token."""

    def __init__(self, known: dict[str, list[int]]) -> None:
        self._known, self.num_accepted = known, 0

    def begin_step(self, num_decoding: int, *, had_prompts: bool, encoding: bool) -> bool:
        return True

    def propose(self, request: Request, most: int) -> list[int]:
        rest = [] if request.num_unknown_tokens else self._known[request.request_id][request.num_output_tokens :]
        return [token if index % 4 else 7 for index, token in enumerate(rest, 1)][: min(most, 6)]

    def observe(self, request: Request, num_draft_tokens: int, num_accepted: int) -> None:
        self.num_accepted += num_accepted


def test_draft_tokens(engine: EngineDriver, checkpoint: Checkpoint) -> None:
    wanted = {f"r{i}": (i, (PROMPT, LONG_PROMPT)[i % 2]) for i in range(NUM_SOUNDS)}
    drafter = _Guesser({name: checkpoint.greedy(*what) for name, what in wanted.items()})
    _run(engine, engine.scheduler(max_embeddings=NUM_SOUNDS * NUM_STATES, drafter=drafter), checkpoint, wanted)
    assert drafter.num_accepted > MAX_TOKENS


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"quantization": "int8"}, {"batch_invariant": True}], ids=str)
@pytest.mark.skipif(not isas_of_this_cpu(), reason="there are no kernels for this CPU")
def test_passes_its_checks_at_load_and_generates(checkpoint: Checkpoint, options: dict[str, Any]) -> None:
    engine = EngineDriver(checkpoint.path, max_num_seqs=4, num_blocks=16, **options)
    generated = engine.run(_scheduler(engine), [checkpoint.request("r", 0)], embeddings=checkpoint.embeddings)
    assert len(generated["r"].token_ids) == MAX_TOKENS


def test_no_adapters_are_taken(checkpoint: Checkpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        engine = EngineDriver(checkpoint.path, lora_dir=tmp_path)
    assert engine.runner.loras is None
    assert "takes no adapters, because it is an encoder-decoder model" in caplog.text
