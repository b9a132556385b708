"""A tiny random Whisper checkpoint, complete as on a hub: the real special tokens and feature extractor, and a small vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

SAMPLING_RATE = 16_000
#: Tokens of real checkpoints behind those of text, in their order. Time stamps come after them.
_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in list(LANGUAGES)[:99]),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
_WORDS = (" the", " cat", " sat", " on", " mat")


def whisper_tokenizer() -> WhisperTokenizer:
    """A tokenizer with a token for each byte and for a few words, and with Whisper's special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, merges = {char: index for index, char in enumerate(alphabet)}, []
    for word in _WORDS:
        text = word.replace(" ", "Ġ")
        for end in range(2, len(text) + 1):
            if text[:end] not in vocab:
                merges.append((text[: end - 1], text[end - 1]))
                vocab[text[:end]] = len(vocab)
    tokenizer = WhisperTokenizer(vocab, merges)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in _SPECIAL], special_tokens=True)
    tokenizer.add_tokens([AddedToken(f"<|{number * 0.02:.2f}|>", normalized=False) for number in range(1501)])
    return tokenizer


def build_whisper(directory: Path, *, seed: int = 0, **config: Any) -> Path:
    """Write a tiny random checkpoint into the directory. Returns the directory. config: entries that are not the defaults here."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = whisper_tokenizer()
    end, start = (tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL[:2])
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            **{
                "vocab_size": len(tokenizer), "decoder_start_token_id": start, "eos_token_id": end, "bos_token_id": end,
                "pad_token_id": end, **sizes, **heads, **config,
            }
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name and name.endswith("weight"):
                parameter.uniform_(0.7, 1.3)
            elif parameter.requires_grad:
                # What is heard must matter more than the token before, which is also what a tied head compares with.
                parameter.normal_(0.0, 0.3 if "encoder_attn" in name else 0.1 if "embed_tokens" in name else 0.2)
        model.get_input_embeddings().weight[end:] *= 0.1  # or nearly all tokens would be time stamps
    generation = model.generation_config
    generation._from_model_config = False
    generation.suppress_tokens = [5, 6, *(tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL[-7:])]
    generation.begin_suppress_tokens = [tokenizer.convert_tokens_to_ids("Ġ"), end]
    generation.lang_to_id = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL[2:101]}
    generation.task_to_id = {task: tokenizer.convert_tokens_to_ids(f"<|{task}|>") for task in ("translate", "transcribe")}
    generation.no_timestamps_token_id = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    generation.is_multilingual, generation.max_length = True, model.config.max_target_positions
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(directory)
    settings = json.loads((directory / "preprocessor_config.json").read_text())
    (directory / "preprocessor_config.json").write_text(json.dumps({**settings, "processor_class": "WhisperProcessor"}))
    return directory


def a_sound(seed: int, seconds: float = 2.0) -> np.ndarray:
    """[num_samples] float32: tones that change, unlike each other for different seeds."""
    generator = np.random.default_rng(seed)
    time_s = np.arange(int(seconds * SAMPLING_RATE)) / SAMPLING_RATE
    tones = [
        generator.uniform(0.1, 0.3)
        * np.sin(2 * np.pi * generator.uniform(80, 4000) * time_s)
        * (time_s % generator.uniform(0.3, 1))
        for _ in range(4)
    ]
    return (sum(tones) + 0.01 * generator.standard_normal(len(time_s))).astype(np.float32)
