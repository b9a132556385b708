"""Pooling models give what sentence-transformers gives, whatever is in the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.builders.pooling import DECODERS, ENCODERS, a_classifier, a_config, a_tokenizer, an_embedder, texts
from support.drivers.engine import in_this_process
from support.drivers.pooling import PoolingDriver
from support.pooling_reference import cross_encoder, sentence_transformer
from transformers import AutoTokenizer
from triptych_common.model.store import EMBEDDING_MODEL, resolve_model
from triptych_engine.scheduling.request import PoolingParams

_TOLERANCE = 1e-5


def _tokens(path: Path, some: list[str]) -> list[list[int]]:
    ids: list[list[int]] = AutoTokenizer.from_pretrained(path)(some, truncation=True, max_length=40)["input_ids"]
    return ids


def _same(ours: list[np.ndarray], theirs: np.ndarray) -> None:
    np.testing.assert_allclose(np.stack(ours), theirs, atol=_TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_encoders(family: str, mode: str, tmp_path: Path) -> None:
    path, some = an_embedder(tmp_path, family, mode=mode), texts(40)
    driver = PoolingDriver(path)
    _same(driver.run(_tokens(path, some)), sentence_transformer(path).encode(some))


@in_this_process
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert", "modernbert"])
def test_texts_need_no_padding(family: str, tmp_path: Path) -> None:
    driver = PoolingDriver(an_embedder(tmp_path, family))
    assert driver.executor.runner._model.is_flat  # type: ignore[union-attr]


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_padding_tokens_in_texts(family: str, tmp_path: Path) -> None:
    path, some = an_embedder(tmp_path, family), ["w1 [PAD] w2", "[PAD]", "w3 w4 w5", ""]
    _same(PoolingDriver(path).run(_tokens(path, some)), sentence_transformer(path).encode(some))


@pytest.mark.parametrize("mode", ["max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
def test_modes_and_a_linear_layer(mode: str, tmp_path: Path) -> None:
    path, some = an_embedder(tmp_path, "bert", mode=mode, normalize=False, dense=12), texts(20)
    driver = PoolingDriver(path)
    assert driver.pooling is not None
    assert driver.pooling.size == 12
    _same(driver.run(_tokens(path, some)), sentence_transformer(path).encode(some))


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken", "max"])
def test_decoders_in_chunks(family: str, mode: str, tmp_path: Path) -> None:
    path, some = an_embedder(tmp_path, family, mode=mode), texts(12)
    driver = PoolingDriver(path, max_num_batched_tokens=8, max_num_seqs=4)
    _same(driver.run(_tokens(path, some)), sentence_transformer(path).encode(some))


def test_a_model_that_generates_can_embed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(a_config("llama")).eval()
    model.save_pretrained(tmp_path)
    path, some = a_tokenizer(tmp_path), texts(6)
    prompts = _tokens(path, some)
    with torch.inference_mode():
        last = [model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in prompts]
    expected = torch.nn.functional.normalize(torch.stack(last), dim=-1)
    _same(PoolingDriver(path, "embed").run(prompts), expected.numpy())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_cross_encoders(family: str, tmp_path: Path) -> None:
    path = a_classifier(tmp_path, family)
    pairs = list(zip(texts(16, 12), texts(16, 12, seed=1), strict=True))
    encoded = AutoTokenizer.from_pretrained(path)([a for a, _ in pairs], [b for _, b in pairs], return_token_type_ids=True)
    seconds = [types.index(1) for types in encoded["token_type_ids"]]
    if family == "bert":
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    else:  # these have no token types
        names, seconds = {"model_input_names": ["input_ids", "attention_mask"]}, [0] * len(pairs)
    params = [PoolingParams(second_text_start=second) for second in seconds]
    scores = PoolingDriver(path).run(encoded["input_ids"], params)
    model = cross_encoder(path, tokenizer_kwargs=names)
    np.testing.assert_allclose(np.stack(scores)[:, 0], model.predict(pairs), atol=_TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ["bert", "qwen2"])
def test_classifiers(family: str, tmp_path: Path) -> None:
    path, some = a_classifier(tmp_path, family, num_labels=3), texts(10)
    prompts = _tokens(path, some)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
    with torch.inference_mode():
        expected = torch.cat([model(input_ids=torch.tensor([prompt])).logits.softmax(-1) for prompt in prompts])
    _same(PoolingDriver(path).run(prompts), expected.numpy())


def test_vectors_of_tokens(tmp_path: Path) -> None:
    path, some = an_embedder(tmp_path, "bert"), texts(9)
    of_tokens = sentence_transformer(path).encode(some, output_value="token_embeddings")
    ours = PoolingDriver(path).run(_tokens(path, some), PoolingParams(per_token=True))
    for one, other in zip(ours, of_tokens, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=_TOLERANCE, rtol=0)


def test_minilm_in_any_batch() -> None:
    path = resolve_model(EMBEDDING_MODEL)
    reference, driver = sentence_transformer(path), PoolingDriver(path)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "box"]
    some = [" ".join(words[: 1 + number % len(words)] * (1 + number % 7)) for number in range(60)]
    expected = reference.encode(some)
    tokens = reference.tokenizer(some)["input_ids"]
    _same(driver.run(tokens), expected)
    _same([driver.run([prompt])[0] for prompt in tokens[:8]], expected[:8])
    _same(driver.run(tokens[::-1])[::-1], expected)
