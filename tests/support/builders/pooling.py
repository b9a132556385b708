"""Tiny random pooling models in directories, as sentence-transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

#: Words that the tokenizer of the tiny models knows.
WORDS = [f"w{number}" for number in range(40)]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_VOCAB_SIZE = len(_SPECIAL) + len(WORDS)
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
#: name -> (configuration class, what differs from BERT's sizes).
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"type_vocab_size": 1, "bos_token_id": 2, "eos_token_id": 3}),
    "xlm-roberta": ("XLMRobertaConfig", {"type_vocab_size": 1, "bos_token_id": 2, "eos_token_id": 3}),
    "distilbert": ("DistilBertConfig", {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}),
    "mpnet": ("MPNetConfig", {"bos_token_id": 2, "eos_token_id": 3}),
    "modernbert": ("ModernBertConfig", {"local_attention": 8, "cls_token_id": 2, "sep_token_id": 3}),
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 2, "pad_token_id": None}),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 2, "pad_token_id": None}),
}


def a_config(family: str, **options: Any) -> transformers.PretrainedConfig:
    """A tiny configuration of the family."""
    name, own = (ENCODERS | DECODERS)[family]
    sizes = {
        key: value for key, value in _SIZES.items() if family != "distilbert" or key not in ("hidden_size", "intermediate_size")
    }
    config: transformers.PretrainedConfig = getattr(transformers, name)(**{**sizes, **own, **options})
    return config


def an_embedder(path: Path, family: str, *, mode: str = "mean", normalize: bool = True, dense: int = 0) -> Path:
    """An embedding model.

    Args:
        mode: how it pools.
        dense: size of a linear layer after the pooling; 0 for none.
    """
    torch.manual_seed(0)
    transformers.AutoModel.from_config(a_config(family)).save_pretrained(path)
    a_tokenizer(path)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(path / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode": mode})
    if dense:
        modules.append(("2_Dense", "Dense"))
        options = {"in_features": 32, "out_features": dense, "bias": True}
        _write(path / "2_Dense" / "config.json", {**options, "activation_function": "torch.nn.modules.activation.Tanh"})
        from safetensors.torch import save_file

        weights = {"linear.weight": torch.randn(dense, 32), "linear.bias": torch.randn(dense)}
        save_file(weights, path / "2_Dense" / "model.safetensors")
    if normalize:
        (path / "3_Normalize").mkdir()
        modules.append(("3_Normalize", "Normalize"))
    named = enumerate(modules)
    entries = [{"idx": i, "name": str(i), "path": at, "type": f"sentence_transformers.models.{kind}"} for i, (at, kind) in named]
    _write(path / "modules.json", entries)
    _write(path / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    return path


def a_classifier(path: Path, family: str = "bert", num_labels: int = 1) -> Path:
    """A cross-encoder, with one label, or a classifier."""
    torch.manual_seed(0)
    config = a_config(family, num_labels=num_labels)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(path)
    return a_tokenizer(path)


def a_tokenizer(path: Path) -> Path:
    """Words to tokens, with [CLS] and [SEP] around texts."""
    vocab = {token: index for index, token in enumerate([*_SPECIAL, *WORDS])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names).save_pretrained(path)
    return path


def texts(count: int, longest: int = 30, seed: int = 0) -> list[str]:
    """Texts of different lengths."""
    import random

    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(1, longest))) for _ in range(count)]


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
