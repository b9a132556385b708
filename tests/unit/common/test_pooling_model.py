"""What a model is served for, by its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from triptych.errors import InvalidRequestError, StartupError, UnimplementedError
from triptych.v1 import common_pb2
from triptych_common.model.pooling import PoolingModel, check_pooling, pooling_model, served_model

_BERT = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8, "max_position_embeddings": 64}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "max_position_embeddings": 64}


def a_model(path: Path, config: dict[str, Any], **files: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        file = path / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content))
    return path


def modules(*kinds: str) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{kind}", "path": f"{index}_{kind}"} for index, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("config", "kind", "mode"),
    [
        (_BERT, "embed", "mean"),
        (_BERT | {"architectures": ["BertForMaskedLM"]}, "embed", "mean"),
        (_BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}, "classify", "cls"),
        (_LLAMA | {"architectures": ["LlamaForSequenceClassification"]}, "classify", "lasttoken"),
        (_LLAMA | {"architectures": ["LlamaModel"]}, "embed", "lasttoken"),
        (_LLAMA, None, ""),
        (_LLAMA | {"architectures": ["GPT2LMHeadModel"]}, None, ""),
    ],
)
def test_auto_decides_by_the_files(tmp_path: Path, config: dict[str, Any], kind: str | None, mode: str) -> None:
    model = pooling_model(a_model(tmp_path, config))
    assert (model and model.kind) == kind
    if model:
        assert model.modes == (mode,)


def test_a_generator_embeds_if_it_is_told_to(tmp_path: Path) -> None:
    info, pooling = served_model(a_model(tmp_path, _LLAMA), "m", None, "embed")
    assert pooling is not None
    assert not pooling.is_bidirectional
    assert common_pb2.TASK_EMBED in info.capabilities.tasks
    generates, none = served_model(tmp_path, "m", None, "auto")
    assert none is None
    assert list(generates.capabilities.tasks) == [common_pb2.TASK_GENERATE]
    assert generates.fingerprint != info.fingerprint


def test_an_encoder_does_not_generate(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="generates no text"):
        pooling_model(a_model(tmp_path, _BERT), "generate")


def test_the_longest_input(tmp_path: Path) -> None:
    path = a_model(tmp_path, _BERT | {"model_type": "roberta", "pad_token_id": 1})
    assert served_model(path, "m", None, "auto")[0].max_model_len == 62
    a_model(tmp_path, _BERT, sentence_bert_config={"max_seq_length": 32})
    assert served_model(path, "m", None, "auto")[0].max_model_len == 32
    assert served_model(path, "m", 48, "auto")[0].max_model_len == 48


def test_what_is_not_supported_is_told(tmp_path: Path) -> None:
    for message, files in {
        "a module WeightedLayerPooling": {"modules": modules("Transformer", "WeightedLayerPooling")},
        "a linear layer after": {"modules": modules("Transformer", "Pooling", "Normalize", "Dense")},
        "the pooling mode 'no'": {
            "modules": modules("Transformer", "Pooling"),
            "1_Pooling__config": {"pooling_mode": "no"},
        },
    }.items():
        with pytest.raises(StartupError, match=message):
            pooling_model(a_model(tmp_path, _BERT, **files))


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 3}, "softmax"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
    ],
)
def test_activations(tmp_path: Path, config: dict[str, Any], activation: str) -> None:
    path = a_model(tmp_path, _BERT | {"architectures": ["BertForSequenceClassification"]} | config)
    model = pooling_model(path)
    assert model is not None
    assert model.activation == activation


def test_dimensions() -> None:
    plain, cut = PoolingModel("embed", True, 8), PoolingModel("embed", True, 8, is_matryoshka=True, matryoshka_dimensions=(2, 4))
    assert check_pooling(common_pb2.PoolingParams(dimensions=8), plain) == common_pb2.TASK_EMBED
    assert check_pooling(common_pb2.PoolingParams(dimensions=4), cut) == common_pb2.TASK_EMBED
    for model, dimensions in ((plain, 4), (cut, 3), (cut, 9)):
        with pytest.raises(InvalidRequestError, match="dimensions must be"):
            check_pooling(common_pb2.PoolingParams(dimensions=dimensions), model)
    with pytest.raises(UnimplementedError, match="does not classify; it does: embed"):
        check_pooling(common_pb2.PoolingParams(task=common_pb2.TASK_CLASSIFY), plain)


def test_a_default_prompt_and_lower_case(tmp_path: Path) -> None:
    files = {"config_sentence_transformers": {"prompts": {"query": "Q: "}, "default_prompt_name": "query"}}
    model = pooling_model(a_model(tmp_path, _BERT, **files, sentence_bert_config={"do_lower_case": True}))
    assert model is not None
    assert (model.prompt, model.lowercases) == ("Q: ", True)
    files["config_sentence_transformers"]["default_prompt_name"] = "unknown"
    with pytest.raises(StartupError, match="unknown"):
        pooling_model(a_model(tmp_path, _BERT, **files))


def test_positions_after_a_padding_token_that_is_not_named(tmp_path: Path) -> None:
    roberta = _BERT | {"architectures": ["RobertaModel"], "model_type": "roberta"}
    model = pooling_model(a_model(tmp_path, roberta))
    assert model is not None
    assert model.max_tokens == 62
