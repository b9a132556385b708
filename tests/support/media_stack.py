"""A complete encoder and a complete engine in this process, and the frontend's own preparation of prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, generation_pb2
from triptych_common.model.store import model_info
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.control import State
from triptych_engine.service import EngineService
from triptych_engine.settings import EngineSettings
from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.media.fetch import MediaFetcher
from triptych_frontend.media.preparer import MediaPreparer
from triptych_frontend.prompt.chat_template import ChatTemplate
from triptych_frontend.prompt.preprocess import Preprocessor, Prompt
from triptych_frontend.service import _load_text_and_media
from triptych_frontend.settings import FrontendSettings

from support.drivers.encoder import MODALITIES, RunningEncoder, an_encoder
from support.waiting import until

#: A text, or a modality and a file.
Part = str | tuple[str, bytes]


@dataclass
class Answer:
    """All output for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[engine_pb2.TokenLogprobs] = field(default_factory=list)
    last: engine_pb2.SequenceOutput = field(default_factory=engine_pb2.SequenceOutput)


@dataclass
class MediaStack:
    """The frontend's work: prompts, encodings, requests."""

    engine: EngineService
    encoder: RunningEncoder
    stub: engine_pb2_grpc.EngineServiceStub
    preprocessor: Preprocessor
    client: EncoderClient
    embed_token_ids: frozenset[int]

    async def prompt(self, *parts: Part) -> Prompt:
        """A user's turn of texts and files."""
        content = [
            generation_pb2.ContentPart(text=part)
            if isinstance(part, str)
            else generation_pb2.ContentPart(media=common_pb2.MediaItem(modality=MODALITIES[part[0]], data=part[1]))
            for part in parts
        ]
        return await self.preprocessor.chat(
            generation_pb2.ChatRequest(messages=[generation_pb2.ChatMessage(role="user", content=content)])
        )

    def begin(self, prompt: Prompt) -> MediaEncoding:
        """Start to encode the prompt's media."""
        return MediaEncoding(self.client, prompt.media)

    async def generate(
        self, prompt: Prompt, refs: Sequence[common_pb2.MediaRef], request_id: str = "r", max_tokens: int = 8, **more: Any
    ) -> Answer:
        """Greedy, with log probabilities. Placeholder tokens are never generated, because transformers treats them as media."""
        sampling = common_pb2.SamplingParams(
            max_tokens=max_tokens, temperature=0, logprobs=3, ignore_eos=True, bad_token_ids=sorted(self.embed_token_ids)
        )
        request = engine_pb2.EngineRequest(
            request_id=request_id, prompt_token_ids=prompt.token_ids, sampling=sampling, media=refs,
            placeholders=prompt.placeholders, **more,
        )  # fmt: skip
        answer = Answer()
        async for response in self.stub.Generate(engine_pb2.GenerateRequest(request=request)):
            answer.token_ids += response.output.token_ids
            answer.logprobs += response.output.logprobs
            answer.last = response.output
        return answer

    async def answer(self, prompt: Prompt, request_id: str = "r", **options: Any) -> Answer:
        """Encode and generate at the same time, as a frontend does."""
        if not prompt.media:
            return await self.generate(prompt, [], request_id, **options)
        encoding = self.begin(prompt)
        try:
            await encoding.announced()
            answer, _ = await asyncio.gather(self.generate(prompt, encoding.refs, request_id, **options), encoding.wait())
            return answer
        finally:
            await encoding.close()


@asynccontextmanager
async def a_media_stack(path: Path, **engine_settings: Any) -> AsyncIterator[MediaStack]:
    """Encoder and engine of a checkpoint, in float32, on free ports."""
    info = model_info(path, path.name)
    async with (
        an_encoder(path, dtype="float32", served_model_name=path.name) as encoder,
        an_engine(path, encoder_addresses=(f"127.0.0.1:{encoder.service.port}",), **engine_settings) as engine,
    ):
        pool = EncoderPool([f"127.0.0.1:{encoder.service.port}"], info)
        client, settings = EncoderClient(pool, 30), FrontendSettings(max_media_items=64)
        tokenizer, expander, why = _load_text_and_media(path)
        assert expander is not None, why
        preparer = MediaPreparer(expander, MediaFetcher(settings), settings, pool)
        marks = {modality: expander.placeholder(modality) for modality in expander.modalities}
        template = ChatTemplate(tokenizer, None, marks, expander.embed_token_ids)
        preprocessor = Preprocessor(tokenizer, template, settings, len(tokenizer), preparer)
        watch = asyncio.create_task(pool.run())
        try:
            async with open_channel(f"127.0.0.1:{engine._server.port}") as channel:
                stub = engine_pb2_grpc.EngineServiceStub(channel)
                ids = frozenset(token_id for token_id in expander.embed_token_ids if token_id < engine.model_info().vocab_size)
                yield MediaStack(engine, encoder, stub, preprocessor, client, ids)
        finally:
            await client.close()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            preparer.close()
            preprocessor.close()


@asynccontextmanager
async def an_engine(path: Path, **settings: Any) -> AsyncIterator[EngineService]:
    """An engine of a checkpoint on a free port."""
    values: dict[str, Any] = {
        "host": "127.0.0.1", "port": 0, "model": str(path), "device": "cpu", "dtype": "float32", "max_num_seqs": 16,
        "kv_cache_memory": 16 << 20, "num_threads": 1, "served_model_name": path.name, **settings,
    }  # fmt: skip
    service = EngineService(EngineSettings(**values))
    stop = asyncio.Event()
    running = asyncio.create_task(service.run(stop))
    try:
        await until(lambda: running.done() or service.state == State.SERVER_STATE_SERVING, timeout_s=60)
        if running.done():
            running.result()
        yield service
    finally:
        stop.set()
        await running
