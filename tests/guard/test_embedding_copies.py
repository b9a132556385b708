"""How often the bytes of an item's embeddings are copied between the encoder's message and the model's input."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.builders.engine import traits
from support.builders.multimodal import build_checkpoint
from support.counting import device_work
from support.drivers.engine import EngineDriver
from support.fakes.encoder import FakeEncoder, encoder_pool
from support.grpc_server import serving
from triptych.v1 import common_pb2, encoder_pb2
from triptych_engine.media import fetcher as embedding_fetcher
from triptych_engine.media.fetcher import EmbeddingFetcher
from triptych_engine.media.item import Embeddings, EmbeddingSlice, EmbeddingTensor, FetchOrder, MediaTraits, Modality

#: The buffer itself, and what may be there beside it: a few chunks, and a part that is looked through for numbers that are none.
#: A second copy of the item would be more.
MAX_PEAK = 1.5
#: Each chunk's bytes are taken out of its message once; each time makes an object of them.
READS_PER_CHUNK = 1
#: Of an item's row, beside itself: its placeholder token, an int64, is replaced by one of the vocabulary.
TOKEN_BYTES = 8

KEY = b"key".ljust(32, b".")
NUM_ROWS = (0, 4, 64)
NUM_CHUNKS, CHUNK_BYTES = 256, 1 << 17


def an_order(address: str, num_tokens: int) -> FetchOrder:
    return FetchOrder(1, KEY, address, "", num_tokens, Modality.IMAGE)


def chunks(num_tokens: int) -> list[encoder_pb2.FetchResponse]:
    """An item with one number per token."""
    header = common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_FLOAT32, shape=[num_tokens, 1])
    data = np.arange(CHUNK_BYTES // 4, dtype=np.float32).tobytes()
    messages = [encoder_pb2.FetchResponse(key=KEY, tensor_name="embeds", data=data) for _ in range(NUM_CHUNKS)]
    messages[0].header.CopyFrom(header)
    messages[-1].last_chunk_of_tensor = messages[-1].last_chunk_of_item = True
    return messages


async def test_a_fetched_item_is_in_memory_once() -> None:
    num_bytes = NUM_CHUNKS * CHUNK_BYTES
    encoder, results = FakeEncoder(common_pb2.ModelInfo(name="fake")), asyncio.Queue[Any]()
    encoder.fetches[KEY] = chunks(num_bytes // 4)
    async with serving(encoder.register) as address, encoder_pool(address, common_pb2.ModelInfo(name="fake")) as encoders:
        fetcher = EmbeddingFetcher(encoders, traits(), 30.0, lambda number, result: results.put_nowait(result))
        tracemalloc.start()
        try:
            fetcher.submit([an_order(encoder.instance.id, num_bytes // 4)], [])
            result = await results.get()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await fetcher.close()
    assert result.num_bytes == num_bytes
    assert peak <= MAX_PEAK * num_bytes


class CountedChunk:
    """A message, and how often its data were asked for."""

    def __init__(self, message: encoder_pb2.FetchResponse) -> None:
        self._message = message
        self.num_reads = 0

    def __getattr__(self, name: str) -> Any:
        self.num_reads += name == "data"
        return getattr(self._message, name)


def test_a_chunk_is_read_once() -> None:
    counted = [CountedChunk(message) for message in chunks(NUM_CHUNKS * CHUNK_BYTES // 4)]
    receiver = embedding_fetcher._Receiver(an_order("", NUM_CHUNKS * CHUNK_BYTES // 4), traits())
    for chunk in counted:
        receiver.take(chunk)  # type: ignore[arg-type]
    assert receiver.result().num_bytes == NUM_CHUNKS * CHUNK_BYTES
    assert {chunk.num_reads for chunk in counted} == {READS_PER_CHUNK}


def test_a_row_is_written_into_the_models_input_once(tmp_path: Path) -> None:
    runner = EngineDriver(build_checkpoint("llava_siglip", tmp_path), num_blocks=16).runner
    assert isinstance(runner.media_traits, MediaTraits)
    hidden_size = runner.media_traits.hidden_size
    embeddings = Embeddings({"embeds": EmbeddingTensor("float32", (100, hidden_size), bytearray(400 * hidden_size))})
    token_ids = torch.full((128,), 5)
    work = []
    with torch.inference_mode():
        for num_rows in NUM_ROWS:
            slices = [(20, EmbeddingSlice(0, num_rows, 10, embeddings))] if num_rows else []
            with device_work() as of_rows:
                runner._media.embed(token_ids, slices)
            work.append(of_rows)
    extra = [of_rows.num_written_bytes - work[0].num_written_bytes for of_rows in work]
    assert extra == [num_rows * (4 * hidden_size + TOKEN_BYTES) for num_rows in NUM_ROWS]
    assert work[1].operations == work[2].operations
