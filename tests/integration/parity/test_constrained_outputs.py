"""Outputs match their constraints: 200 schemas of growing difficulty, greedy and at temperature 1, with both kinds of scheduling.
Most run on a tiny random model with the default model's tokenizer: it wants to break every rule."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.builders.schemas import schemas
from support.drivers.engine import EngineDriver, Generated
from tokenizers import Tokenizer
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.model.store import eos_token_ids, resolve_model
from triptych_common.settings import DEFAULT_MODEL
from triptych_engine.scheduling.request import Constraint, FinishReason, Request

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
MAX_TOKENS = 120
PROMPT = "Here is the JSON:"


@pytest.fixture(scope="module")
def default_model() -> Path:
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_model / "tokenizer.json"))


@pytest.fixture(scope="module")
def tiny(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineDriver:
    path = tmp_path_factory.mktemp("tiny")
    save_random_model(path, a_tiny_llama_config(vocab_size=49152 + 64, max_position_embeddings=512))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_model / name, path / name)
    return EngineDriver(path, max_model_len=512, max_num_seqs=64, num_blocks=1024)


def requests(
    tokenizer: Tokenizer, eos: list[int], temperature: float, texts: list[str], max_tokens: int = MAX_TOKENS
) -> list[Request]:
    prompt = tokenizer.encode(PROMPT).ids
    return [
        a_request(
            f"r{index}",
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=index,
            stop_token_ids=frozenset(eos),
            constraint=Constraint(ConstraintSpec("json_schema", text)),
        )
        for index, text in enumerate(texts)
    ]


def check(
    generated: dict[str, Generated], tokenizer: Tokenizer, documents: list[dict], max_tokens: int = MAX_TOKENS
) -> Counter[str]:
    """Assert that each output that ended matches its schema, and that each other one was cut. Returns how many did what."""
    counts: Counter[str] = Counter()
    for index, schema in enumerate(documents):
        output = generated[f"r{index}"]
        assert output.last is not None
        assert output.last.error is None, (index, output.last.error)
        text = tokenizer.decode(output.token_ids)
        if output.last.finish_reason is FinishReason.LENGTH:
            assert len(output.token_ids) == max_tokens
        else:
            assert output.last.finish_reason is FinishReason.STOP
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        counts[output.last.finish_reason.value] += 1
    return counts


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "async_scheduling"), [(0.0, False), (1.0, True)])
def test_200_schemas(
    tiny: EngineDriver, default_model: Path, tokenizer: Tokenizer, temperature: float, async_scheduling: bool
) -> None:
    documents = schemas(200)
    eos = list(eos_token_ids(default_model))
    wanted = requests(tokenizer, eos, temperature, [json.dumps(schema) for schema in documents])
    # The model would fill strings and numbers with anything: it is made to like what ends them.
    closing = {
        token_id: 40.0 if temperature == 0 else 12.0
        for text in ('"', '"}', '"]', "}", "]", "}}", "<|im_end|>")
        for token_id in tokenizer.encode(text).ids
    }
    for request in wanted:
        request.sampling = replace(request.sampling, logit_bias=closing)
    generated = tiny.run(tiny.scheduler(), wanted, async_scheduling=async_scheduling)
    counts = check(generated, tokenizer, documents)
    assert counts["stop"] > 100, counts


@pytest.mark.long
def test_the_default_model_follows_schemas(default_model: Path, tokenizer: Tokenizer) -> None:
    driver = EngineDriver(default_model, dtype=None, num_blocks=512)
    documents, eos = schemas(200)[::12], list(eos_token_ids(default_model))
    wanted = requests(tokenizer, eos, 1.0, [json.dumps(schema) for schema in documents], 96)
    counts = check(driver.run(driver.scheduler(), wanted), tokenizer, documents, 96)
    assert counts["stop"] > 3, counts


def test_a_cut_output_is_the_beginning_of_one_that_matches(tiny: EngineDriver, default_model: Path, tokenizer: Tokenizer) -> None:
    eos = list(eos_token_ids(default_model))
    (request,) = requests(tokenizer, eos, 1.0, ['{"type": "array", "items": {"type": "integer"}, "minItems": 50}'], 7)
    output = tiny.run(tiny.scheduler(), [request])["r0"]
    assert output.last is not None
    assert (output.last.finish_reason, len(output.token_ids)) == (FinishReason.LENGTH, 7)
    assert set(tokenizer.decode(output.token_ids)) <= set("[]-0123456789, ")


def test_the_same_text_with_preemption_and_asynchronous_scheduling_beside_free_rows(
    tiny: EngineDriver, default_model: Path, tokenizer: Tokenizer
) -> None:
    eos = list(eos_token_ids(default_model))
    texts = [json.dumps(schema) for schema in schemas(200)[::16]]

    def wanted() -> list[Request]:
        made = requests(tokenizer, eos, 1.0, texts, 50)
        for request in made[::2]:  # every other row is free
            request.sampling = replace(request.sampling, constraint=None)
        return made

    free = tiny.run(tiny.scheduler(), wanted()[::2])
    plain = tiny.run(tiny.scheduler(), wanted())
    scarce = tiny.scheduler(num_blocks=16)
    squeezed = tiny.run(scarce, wanted(), async_scheduling=True, arrivals=list(range(len(texts))))
    assert scarce.num_preemptions > 5
    tokens = {request_id: output.token_ids for request_id, output in plain.items()}
    assert {request_id: output.token_ids for request_id, output in squeezed.items()} == tokens
    assert {request_id: output.token_ids for request_id, output in free.items()}.items() <= tokens.items()
