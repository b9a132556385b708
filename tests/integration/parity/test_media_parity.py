"""Tiny random models of all families: tokens and log probabilities through encoder and engine equal those of transformers' own
forward on the same media.

Two requests run in one ragged batch, in chunks as small as the family allows; prompts and placeholders are the frontend's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
import transformers
from support.builders.media import a_picture, a_sound_file, a_video_file, an_image_file, samples
from support.builders.multimodal import FAMILIES, build_checkpoint, modalities
from support.media_reference import audio_inputs, image_inputs, video_inputs
from support.media_stack import Answer, MediaStack, a_media_stack
from triptych.errors import EmbeddingUnavailableError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2
from triptych_encoder.media.processors import VIDEO_MODEL_TYPES
from triptych_frontend.prompt.preprocess import Prompt

pytestmark = pytest.mark.model
_TYPES = {common_pb2.MODALITY_IMAGE: 1, common_pb2.MODALITY_VIDEO: 2, common_pb2.MODALITY_AUDIO: 3}
CASES = [(family, modality) for family in FAMILIES for modality in modalities(family) if modality != "video"]
CASES += [(family, "video") for family in FAMILIES if family in VIDEO_MODEL_TYPES]
#: Prompts of PaliGemma are computed in one step, and so is a picture of Gemma4, which has 70 tokens at most.
_BUDGETS = {"paligemma": 256, "gemma4": 96}
_TEXT = "Say in a few words what this is, and why."


class Media:
    """Two files of a modality, and what transformers' processors make of them."""

    def __init__(self, path: Path, family: str, modality: str) -> None:
        self.modality = modality
        if modality == "image":
            pictures = [a_picture(90, 50), a_picture(40, 70, seed=1)]
            self.files = [an_image_file("PNG", picture) for picture in pictures]
            self.inputs = [image_inputs(path, picture) for picture in pictures]
        elif modality == "audio":
            sounds = [samples(seconds, seed=seed)[:, 0] for seed, seconds in enumerate((1.0, 0.37))]
            self.files = [a_sound_file(data=sound, subtype="FLOAT") for sound in sounds]
            self.inputs = [audio_inputs(path, sound) for sound in sounds]
        else:
            self.files = [a_video_file(31), a_video_file(45, width=64, height=96, seed=1)]
            self.inputs = [video_inputs(family, file) for file in self.files]


class WholeModel:
    """transformers' whole model."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        self._config = transformers.AutoConfig.from_pretrained(path)
        cls = getattr(transformers, self._config.architectures[0])
        self._model = cls.from_pretrained(path, dtype=dtype).eval()

    def logprobs(self, prompt: Prompt, output: list[int], inputs: Sequence[dict[str, torch.Tensor]]) -> torch.Tensor:
        """[len(output), vocab]: of the token at each place of the output, given all before it.

        Args:
            inputs: of each item.
        """
        ids = torch.tensor([prompt.token_ids + output])
        types = torch.zeros_like(ids, dtype=torch.int)
        for placeholder in prompt.placeholders:
            modality = prompt.media[placeholder.media_index].modality
            types[0, placeholder.offset : placeholder.offset + placeholder.length] = _TYPES[modality]
        more: dict[str, Any] = {}
        kind = self._config.model_type
        if kind.startswith(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm", "paddleocr", "gemma4")):
            more["mm_token_type_ids"] = types
        elif kind == "gemma3":
            more["token_type_ids"] = types
        elif kind == "paligemma":
            more["token_type_ids"] = (torch.arange(ids.shape[1]) >= len(prompt.token_ids)).int()[None]
        names = dict.fromkeys(name for one in inputs for name in one)
        joined = {name: torch.cat([one[name] for one in inputs if name in one]) for name in names}
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **joined, **more).logits[0]
        return logits[len(prompt.token_ids) - 1 : -1].float().log_softmax(-1)


def assert_parity(answer: Answer, reference: torch.Tensor, banned: frozenset[int]) -> None:
    allowed = reference.index_fill(1, torch.tensor(sorted(banned), dtype=torch.long), float("-inf"))
    assert answer.token_ids == allowed.argmax(-1).tolist()
    for entry, line in zip(answer.logprobs, reference, strict=True):
        assert entry.logprob == pytest.approx(line[entry.token_id].item(), abs=2e-4)
        assert list(entry.top_logprobs) == pytest.approx(line.topk(3).values.tolist(), abs=2e-4)


@pytest.mark.parametrize(("family", "modality"), CASES)
async def test_tokens_and_logprobs_equal_the_whole_model(family: str, modality: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    media, whole = Media(path, family, modality), WholeModel(path)
    async with a_media_stack(path, max_num_batched_tokens=_BUDGETS.get(family, 16)) as stack:
        prompts = [
            await stack.prompt(_TEXT, (modality, media.files[0]), "Well?"),
            await stack.prompt((modality, media.files[1]), _TEXT),
        ]
        answers = await asyncio.gather(*(stack.answer(prompt, f"r{i}", max_tokens=8) for i, prompt in enumerate(prompts)))
        for prompt, answer, inputs in zip(prompts, answers, media.inputs, strict=True):
            assert_parity(answer, whole.logprobs(prompt, answer.token_ids, [inputs]), stack.embed_token_ids)
            assert getattr(answer.last.usage, f"{modality}_tokens") == sum(p.length for p in prompt.placeholders)
            assert [fetch.source for fetch in answer.last.media] == [common_pb2.EMBEDDING_SOURCE_ENCODER]
        await _ask_again(stack, prompts[0], answers[0])


@pytest.mark.parametrize("settings", [{}, {"attention": "torch", "block_size": 5}])
@pytest.mark.parametrize(
    ("family", "order"),
    [
        ("qwen2_vl", ["image", "video", "image"]),
        ("qwen2_5_vl", ["video", "image"]),
        ("qwen3_vl", ["image", "video", "image"]),
        ("gemma3", ["image", "image"]),
        ("lfm2_vl", ["image", "image"]),
        ("lfm3_vl", ["image", "video", "image"]),
        ("gemma4", ["image", "image"]),
        ("qwen2_5_omni", ["audio", "image"]),
        ("qwen3_omni", ["image", "audio", "image"]),
    ],
)
async def test_several_items_of_several_modalities(family: str, order: list[str], settings: dict, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    media, whole = {modality: Media(path, family, modality) for modality in order}, WholeModel(path)
    async with a_media_stack(path, max_num_batched_tokens=_BUDGETS.get(family, 16), **settings) as stack:
        items = [(modality, order[:index].count(modality)) for index, modality in enumerate(order)]
        files = [(modality, media[modality].files[number]) for modality, number in items]
        inputs = [media[modality].inputs[number] for modality, number in items]
        prompts = [await stack.prompt("These:", *files, "Well?"), await stack.prompt(*files[:1], "and", *files[1:])]
        answers = await asyncio.gather(*(stack.answer(prompt, f"r{i}", max_tokens=6) for i, prompt in enumerate(prompts)))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert_parity(answer, whole.logprobs(prompt, answer.token_ids, inputs), stack.embed_token_ids)


@pytest.mark.parametrize("family", ["llava_siglip", "qwen3_vl", "gemma3", "lfm2_vl", "qwen3_5"])
async def test_bfloat16_is_as_near_to_float32_as_in_transformers(family: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    media = Media(path, family, "image")
    async with a_media_stack(path, max_num_batched_tokens=16, dtype="bfloat16") as stack:
        prompt = await stack.prompt(_TEXT, ("image", media.files[0]))
        answer = await stack.answer(prompt, max_tokens=48)
    exact, theirs = (
        WholeModel(path, dtype).logprobs(prompt, answer.token_ids, media.inputs[:1]) for dtype in (torch.float32, torch.bfloat16)
    )
    chosen = torch.tensor(answer.token_ids)[:, None]
    ours = torch.tensor([entry.logprob for entry in answer.logprobs])
    error = (ours - exact.gather(1, chosen)[:, 0]).abs()
    assert error.mean() <= 1.5 * (theirs - exact).gather(1, chosen).abs().mean()


@pytest.mark.parametrize(
    ("family", "kv_cache_memory", "picture_memory"), [("qwen3_vl", 140_000, 3 * 64 * 4 * 3), ("lfm2_vl", 80_000, 20 * 64 * 4)]
)
async def test_text_does_not_change_under_preemption_and_little_room_for_embeddings(
    family: str, kv_cache_memory: int, picture_memory: int, tmp_path: Path
) -> None:
    path = build_checkpoint(family, tmp_path / family)
    media, whole = Media(path, family, "image"), WholeModel(path)
    # Room for six pictures or so, of which each request needs two; two KV caches' worth of tokens.
    room = 6 * picture_memory
    async with a_media_stack(
        path, max_num_batched_tokens=16, kv_cache_memory=kv_cache_memory, embedding_cache_memory=room
    ) as stack:
        items = [("image", file) for file in media.files]
        prompts = [await stack.prompt("x" * number, items[number % 2], "and", items[1 - number % 2]) for number in range(6)]
        answers = await asyncio.gather(*(stack.answer(prompt, f"r{i}", max_tokens=24) for i, prompt in enumerate(prompts)))
        assert stack.engine._loaded().load.num_preemptions > 0
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            inputs = [media.inputs[number % 2], media.inputs[1 - number % 2]]
            assert_parity(answer, whole.logprobs(prompt, answer.token_ids, inputs), stack.embed_token_ids)


async def test_the_next_turn_after_a_picture_finds_the_states_behind_it(tmp_path: Path) -> None:
    path = build_checkpoint("lfm2_vl", tmp_path / "lfm2_vl")
    media, whole = Media(path, "lfm2_vl", "image"), WholeModel(path)
    async with a_media_stack(path, max_num_batched_tokens=16) as stack:
        first = await stack.prompt(_TEXT, ("image", media.files[0]), "Well?")
        answer = await stack.answer(first, max_tokens=20)
        for more in ([7, 8, 9], [9, 8]):  # the second branches where the answer ends
            turn = replace(first, token_ids=[*first.token_ids, *answer.token_ids, *more])
            got = await stack.answer(turn, f"turn-{len(more)}", max_tokens=8)
            assert got.last.usage.cached_tokens >= len(first.token_ids) // 16 * 16
            assert_parity(got, whole.logprobs(turn, got.token_ids, media.inputs[:1]), stack.embed_token_ids)


async def test_a_dead_encoder_fails_who_needs_it_and_leaves_text_alone(tmp_path: Path) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "llava")
    async with a_media_stack(path, embedding_timeout_s=2) as stack:
        picture, text = await stack.prompt(("image", an_image_file())), await stack.prompt("Hello")
        encoding = stack.begin(picture)
        await encoding.wait()
        refs = encoding.refs
        refs[0].encoder_instance_id = "an encoder that died"
        lost, answer = await asyncio.gather(
            stack.generate(picture, refs, "lost"), stack.generate(text, [], "text"), return_exceptions=True
        )
        assert isinstance(lost, grpc.aio.AioRpcError)
        error = from_rpc_error(lost)
        assert isinstance(error, EmbeddingUnavailableError)
        assert error.field == "media[0]"
        assert isinstance(answer, Answer)
        assert len(answer.token_ids) == 8
        assert len((await stack.generate(picture, encoding.refs, "again")).token_ids) == 8
        await encoding.close()


async def _ask_again(stack: MediaStack, prompt: Prompt, before: Answer) -> None:
    """The same again comes from the prefix cache, as far as its blocks reach, and is the same."""
    answer = await stack.answer(prompt, "again", max_tokens=8)
    assert answer.token_ids == before.token_ids
    cached = answer.last.usage.cached_tokens
    assert cached == (len(prompt.token_ids) - 1) // 16 * 16
    in_prefix = [min(p.offset + p.length, cached) - p.offset for p in prompt.placeholders if p.offset < cached]
    assert answer.last.usage.cached_media_tokens == sum(in_prefix)
    is_spared = all(p.offset + p.length <= cached for p in prompt.placeholders)
    assert [fetch.source for fetch in answer.last.media] == [
        common_pb2.EMBEDDING_SOURCE_PREFIX_CACHE if is_spared else common_pb2.EMBEDDING_SOURCE_ENGINE
    ]
