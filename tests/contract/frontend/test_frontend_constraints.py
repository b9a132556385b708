"""A frontend that generates text is ready for constraints before the first one comes."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from support.builders.frontend import Bench, chat_request, frontend_bench
from support.builders.pooling import a_tokenizer, an_embedder
from support.builders.tokenizer import write_model
from support.waiting import until
from tokenizers import Tokenizer
from triptych.errors import UnimplementedError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.model.pooling import served_model

_OPTIONS = generation_pb2.GenerationOptions(constraint=common_pb2.Constraint(regex="a"))


def _is_loaded(bench: Bench) -> bool:
    return bench.frontend._preprocessor.constraints._cache._tokenizer is not None


async def test_the_tokenizer_of_constraints_is_loaded_without_any_request() -> None:
    async with frontend_bench(ready=False) as bench:
        await until(lambda: _is_loaded(bench))


async def test_a_model_that_embeds_needs_none(tmp_path: Path) -> None:
    path = an_embedder(tmp_path, "bert")
    async with frontend_bench(model=path, engine_model=served_model(path, path.name, None, "auto")[0]) as bench:
        await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=[generation_pb2.EmbedInput(text="w0")]))
        assert not _is_loaded(bench)
        assert not bench.frontend._preprocessor.constraints._cache._recent


async def test_a_tokenizer_that_constraints_cannot_use_fails_only_constraints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = Tokenizer.from_file(str(a_tokenizer(tmp_path / "words") / "tokenizer.json"))
    async with frontend_bench(model=write_model(tmp_path / "model", words)) as bench:
        await until(lambda: "constraints cannot be used" in caplog.text)
        assert (await bench.generation.Chat(chat_request("w0"))).choices
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await bench.generation.Chat(chat_request("w0", options=_OPTIONS))
    error = from_rpc_error(refused.value)
    assert isinstance(error, UnimplementedError)
    assert error.field == "options.constraint"
