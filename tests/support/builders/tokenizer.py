"""A small model directory without weights: byte-level BPE tokenizer, chat template, configuration, all built in code."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from support.run_dir import run_dir

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDOFTEXT_ID, IM_START_ID, IM_END_ID = range(3)
MAX_MODEL_LEN = 256
VOCAB_SIZE = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('tools are not supported: ' + message.content) }}{% endif %}"
    "<|im_start|>{{ message.role }}{% if message.name %} {{ message.name }}{% endif %}{{ '\n' }}"
    "{{ message.content | trim }}<|im_end|>\n"
    "{% endfor %}"
    "{% if style is defined %}[{{ style }}]{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris.",
    "system user assistant You are a helpful assistant. Hello there, how are you today? I am fine, thank you.",
    "one two three four five six seven eight nine ten. Stop here, and go on there; the end of the story is near.",
)


def byte_level_tokenizer(special_tokens: tuple[str, ...] = SPECIAL_TOKENS) -> Tokenizer:
    """A tokenizer like GPT-2's, with a few merges. Every byte has a token; special tokens have the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """A tokenizer like SentencePiece's: adds a space first, falls back to bytes, and begins each text with `<s>`."""
    alphabet = sorted({char for text in _CORPUS for char in text.replace(" ", "▁")} | {"▁", "\n"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *alphabet]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[], unk_token=tokens[0], byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def write_model(
    path: Path,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    special_tokens: dict[str, str] | None = None,
    **config: Any,
) -> Path:
    """Write a model directory that the frontend can serve. Returns its path.

    Args:
        special_tokens: name -> token, e.g. {"bos_token": "<s>"}.
        config: entries of config.json in addition to the defaults.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or byte_level_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    names = special_tokens or {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    _write_json(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    _write_json(
        path / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "max_position_embeddings": MAX_MODEL_LEN,
            "vocab_size": tokenizer.get_vocab_size(),
            "eos_token_id": IM_END_ID,
            **config,
        },
    )
    if chat_template is not None:
        (path / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    return path


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@lru_cache(1)
def small_model_dir() -> Path:
    """The default small model, written once per test run."""
    return write_model(run_dir("model") / "small")


def save_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Write the files of a fast tokenizer that ends sequences with <|im_end|>."""
    tokenizer.save(str(path / "tokenizer.json"))
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(content))
