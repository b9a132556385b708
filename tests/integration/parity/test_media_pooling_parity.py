"""Embeddings of conversations with pictures: through frontend, encoder and engine as from transformers' whole model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.builders.media import a_picture, an_image_file
from support.builders.multimodal import build_checkpoint
from support.drivers.encoder import an_encoder
from support.media_reference import image_inputs
from support.media_stack import an_engine
from support.waiting import until
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc, preprocess_pb2, preprocess_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_frontend.service import Frontend
from triptych_frontend.settings import FrontendSettings

pytestmark = pytest.mark.model
_PICTURES = [a_picture(90, 50), a_picture(40, 70, seed=1)]


def _messages(*parts: str | int) -> generation_pb2.ChatMessages:
    """A user's turn of texts, and of pictures by their numbers."""
    content = [
        generation_pb2.ContentPart(text=part)
        if isinstance(part, str)
        else generation_pb2.ContentPart(
            media=common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=an_image_file("PNG", _PICTURES[part]))
        )
        for part in parts
    ]
    return generation_pb2.ChatMessages(messages=[generation_pb2.ChatMessage(role="user", content=content)])


@asynccontextmanager
async def _a_frontend(path: Path, **engine_settings: Any) -> AsyncIterator[tuple[Any, Any]]:
    """The stubs for generation and preprocessing of a frontend with an encoder and an engine that embeds."""
    async with an_encoder(path, dtype="float32", served_model_name=path.name) as encoder:
        encoders = (f"127.0.0.1:{encoder.service.port}",)
        async with an_engine(path, task="embed", encoder_addresses=encoders, **engine_settings) as engine:
            engines = (f"127.0.0.1:{engine._server.port}",)
            frontend = Frontend(
                FrontendSettings(model=str(path), port=0, engine_addresses=engines, encoder_addresses=encoders, task="embed")
            )
            async with frontend.running(), open_channel(f"127.0.0.1:{frontend.server.port}") as channel:
                await until(lambda: bool(frontend._engines.ready and frontend._encoders.ready))
                yield generation_pb2_grpc.GenerationServiceStub(channel), preprocess_pb2_grpc.PreprocessServiceStub(channel)
                await until(lambda: not frontend.num_live_requests)


def _reference(path: Path, family: str, token_ids: list[int], pictures: list[int]) -> np.ndarray:
    """Last hidden state of the last token, of length 1."""
    config = transformers.AutoConfig.from_pretrained(path)
    model = getattr(transformers, config.architectures[0]).from_pretrained(path, dtype=torch.float32).eval()
    inputs = [image_inputs(path, _PICTURES[number]) for number in pictures]
    joined = {name: torch.cat([one[name] for one in inputs]) for one in inputs[:1] for name in one}
    ids = torch.tensor([token_ids])
    if family != "llava_siglip" and inputs:
        joined["mm_token_type_ids"] = (ids == config.image_token_id).int()
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, use_cache=False, **joined)
    return torch.nn.functional.normalize(output.hidden_states[-1][0, -1], dim=-1).numpy()


@pytest.mark.parametrize("family", ["llava_siglip", "qwen2_vl", "qwen3_vl"])
async def test_pictures_are_embedded(family: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    contents: list[list[str | int]] = [["What is this?", 0], [1, "and", 0], ["No picture."], [1]]
    inputs = [generation_pb2.EmbedInput(messages=_messages(*content)) for content in contents]
    async with _a_frontend(path, max_num_batched_tokens=16) as (generation, preprocess):
        answer = await generation.Embed(generation_pb2.EmbedRequest(inputs=inputs))
        prompts = []
        for one in inputs:
            chat = generation_pb2.ChatRequest(messages=one.messages.messages, add_generation_prompt=False)
            prompts.append(await preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat)))
    for content, prompt, one in zip(contents, prompts, answer.embeddings, strict=True):
        pictures = [part for part in content if isinstance(part, int)]
        np.testing.assert_allclose(one.values, _reference(path, family, list(prompt.token_ids), pictures), atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(prompt.token_ids) for prompt in prompts)
    assert answer.usage.image_tokens == sum(p.length for prompt in prompts for p in prompt.placeholders) > 0
