"""Which model a name means: a model, or an adapter of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from triptych.v1 import common_pb2
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.models import ServedModels


def a_frontend(name: str, *adapters: str, lora: bool = True) -> FrontendConnection:
    frontend: Any = SimpleNamespace()
    able = common_pb2.Capabilities(lora=lora)
    frontend.models = [common_pb2.ModelInfo(name=name, capabilities=able)]
    frontend.models += [common_pb2.ModelInfo(name=f"{name}:{adapter}", parent=name) for adapter in adapters]
    frontend.serves = lambda model: FrontendConnection.serves(frontend, model)
    return frontend


def served(*frontends: FrontendConnection, expected: tuple[str, ...] = ()) -> ServedModels:
    pool: Any = SimpleNamespace(connections=frontends)
    return ServedModels(pool, expected)


@pytest.mark.parametrize(
    ("name", "base"),
    [("m", "m"), ("m:a", "m"), ("m:new", "m"), ("m:", "m:"), ("n:a", "n:a"), ("mm:a", "mm:a"), ("", ""), ("plain:a", "plain:a")],
)
def test_an_adapter_is_of_a_model_that_takes_some(name: str, base: str):
    assert served(a_frontend("m", "a"), a_frontend("plain", lora=False)).base_of(name) == base


def test_a_model_whose_name_has_a_colon_is_no_adapter():
    models = served(a_frontend("qwen2.5", "a"), a_frontend("qwen2.5:7b", "a"))
    big, small = models._pool.connections[::-1]
    for name, wanted in (("qwen2.5:7b", big), ("qwen2.5:7b:a", big), ("qwen2.5:a", small), ("qwen2.5", small)):
        assert [models.serves(one, name) for one in (big, small)] == [one is wanted for one in (big, small)]


def test_a_model_that_is_away_may_take_adapters():
    assert served(expected=("m",)).base_of("m:a") == "m"
    assert served(a_frontend("m", lora=False), expected=("m",)).base_of("m:a") == "m:a"
    assert served(a_frontend("m", lora=False), a_frontend("m"), expected=("m",)).base_of("m:a") == "m"


def test_adapters_are_no_names_of_models():
    assert served(a_frontend("m", "a", "b")).names == ["m"]
