"""The names of a frontend's model and of its adapters."""

from __future__ import annotations

import pytest
from triptych.errors import ModelNotFoundError
from triptych.v1 import common_pb2
from triptych_frontend.served_model import ServedModel


def an_engine_model(*adapters: tuple[str, str], lora: bool = True) -> common_pb2.ModelInfo:
    found = [common_pb2.Adapter(name=name, digest=digest) for name, digest in adapters]
    return common_pb2.ModelInfo(name="m", adapters=found, capabilities=common_pb2.Capabilities(lora=lora))


@pytest.fixture
def model() -> ServedModel:
    return ServedModel(common_pb2.ModelInfo(name="m", max_model_len=64, weights_fingerprint="ff"))


def test_before_an_engine_is_there_a_name_may_be_an_adapters(model: ServedModel):
    assert [model.adapter_of(name) for name in ("", "m", "m:a", "m:a:b")] == ["", "", "a", "a:b"]
    for name in ("m:", "n", "n:a"):
        with pytest.raises(ModelNotFoundError):
            model.adapter_of(name)


def test_engines_without_adapters_know_none(model: ServedModel):
    model.follow([an_engine_model(lora=False)])
    with pytest.raises(ModelNotFoundError):
        model.adapter_of("m:a")
    model.follow([an_engine_model(("a", "")), an_engine_model(lora=False)])
    assert model.adapter_of("m:a") == "a"
    model.follow([])
    assert model.adapter_of("m:a") == "a", "the engines are restarted, or sleep"


def test_each_adapter_is_listed_as_a_model_with_a_digest_that_any_engine_knows(model: ServedModel):
    for engines in ([an_engine_model(("a", "12")), an_engine_model(("a", ""), ("b", ""))],
                    [an_engine_model(("b", ""), ("a", "")), an_engine_model(("a", "12"))]):  # fmt: skip
        model.follow(engines)
        listed = [(info.name, info.parent, info.weights_fingerprint, info.capabilities.lora) for info in model.listed()]
        assert listed == [("m", "", "ff", True), ("m:a", "m", "ff12", False), ("m:b", "m", "ff", False)]
        assert not any(info.adapters for info in model.listed())
