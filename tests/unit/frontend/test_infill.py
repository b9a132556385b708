"""Prompts with a suffix, with tokenizers that have the real tokens of the families."""

from __future__ import annotations

import pytest
from support.builders.tokenizer import SPECIAL_TOKENS, byte_level_tokenizer, metaspace_tokenizer
from tokenizers import AddedToken
from transformers import CodeLlamaTokenizer, PreTrainedTokenizerFast
from triptych_frontend.prompt.infill import Infill
from triptych_frontend.tokens.tokenizer import Tokenizer

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
GEMMA = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_separator|>")
STARCODER = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<repo_name>", "<file_sep>")
DEEPSEEK = ("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>")
SEED = ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
MISTRAL = ("[INST]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]")
CODE_LLAMA = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")


def byte_level(tokens: tuple[str, ...], is_special: bool = True) -> Tokenizer:
    backend = byte_level_tokenizer()
    add = backend.add_special_tokens if is_special else backend.add_tokens
    add([AddedToken(text, normalized=False) for text in tokens])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


def spelled(tokenizer: Tokenizer, prefix: str, suffix: str, add_special_tokens: bool = True) -> str:
    infill = Infill.of(tokenizer)
    assert infill is not None
    return tokenizer.decode(infill.tokenized(prefix, suffix, add_special_tokens).token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("tokens", "is_special", "expected"),
    [
        # Qwen's tokens are added and not special.
        (QWEN, False, "<|fim_prefix|>def f(a):\n    <|fim_suffix|>\n    return a<|fim_middle|>"),
        (GEMMA, True, "<|fim_prefix|>def f(a):\n    <|fim_suffix|>\n    return a<|fim_middle|>"),
        (STARCODER, True, "<fim_prefix>def f(a):\n    <fim_suffix>\n    return a<fim_middle>"),
        (DEEPSEEK, True, "<｜fim▁begin｜>def f(a):\n    <｜fim▁hole｜>\n    return a<｜fim▁end｜>"),
        (SEED, True, "<[fim-suffix]>\n    return a<[fim-prefix]>def f(a):\n    <[fim-middle]>"),
        (MISTRAL, True, "[SUFFIX]\n    return a[PREFIX]def f(a):\n    "),
    ],
)
def test_the_formats(tokens: tuple[str, ...], is_special: bool, expected: str) -> None:
    assert spelled(byte_level(tokens, is_special), "def f(a):\n    ", "\n    return a") == expected


@pytest.mark.parametrize(("tokens", "ends"), [(QWEN, QWEN), (GEMMA, GEMMA), (STARCODER, STARCODER), (DEEPSEEK, DEEPSEEK)])
def test_the_answer_ends_at_a_mark(tokens: tuple[str, ...], ends: tuple[str, ...]) -> None:
    tokenizer = byte_level(tokens)
    infill = Infill.of(tokenizer)
    assert infill is not None
    prompt = infill.tokenized("a", "b", True)
    assert prompt.text == "a"
    assert {tokenizer.backend.id_to_token(one) for one in prompt.stop_token_ids} == set(ends)


@pytest.mark.parametrize("tokens", [(), ("<|fim_prefix|>", "<|fim_suffix|>"), ("[PREFIX]",), ("<fim_prefix>", "<|fim_suffix|>")])
def test_a_tokenizer_without_all_tokens_of_a_format(tokens: tuple[str, ...]) -> None:
    assert Infill.of(byte_level(tokens)) is None


def code_llama() -> CodeLlamaTokenizer:
    characters = sorted(set("▁def(a):\nreturn 0123x") - {" "})
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    return CodeLlamaTokenizer(vocab={text: index for index, text in enumerate(texts)}, merges=[])


@pytest.mark.parametrize("prefix", ["def f(a):", "def f(a):\n    ", " a", "x"])
@pytest.mark.parametrize("suffix", ["\n return a", "return a", " a", "):"])
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_code_llama_as_meta_has_it(prefix: str, suffix: str, add_special_tokens: bool) -> None:
    """`infilling_prompt_tokens`: behind a smiley, SentencePiece puts no space before the suffix."""
    hf = code_llama()
    infill = Infill.of(Tokenizer(code_llama()))
    assert infill is not None
    # A space, and the bytes of the smiley.
    smiley = hf.encode("☺", add_special_tokens=False)
    assert len(smiley) == 4
    behind = hf.encode(f"☺{suffix}", add_special_tokens=False)[4:]
    before = hf.encode(prefix, add_special_tokens=False)
    expected = [hf.prefix_id, *before, hf.suffix_id, *behind, hf.middle_id]
    bos = [hf.bos_token_id] if add_special_tokens else []
    assert infill.tokenized(prefix, suffix, add_special_tokens).token_ids == [*bos, *expected]


def test_code_llama_ends_with_its_own_token() -> None:
    prompt = Infill.of(Tokenizer(code_llama()))
    assert prompt is not None
    assert code_llama().eot_id in prompt.tokenized("a", "a", True).stop_token_ids


def test_codestral_begins_a_text_and_puts_a_space_before_the_prefix_only() -> None:
    """As mistral-common's encode_fim with SentencePiece."""
    backend = metaspace_tokenizer()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in MISTRAL])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))
    infill = Infill.of(tokenizer)
    assert infill is not None
    tokens = tokenizer.tokens(infill.tokenized("one", "two", True).token_ids)
    assert tokens == ["<s>", "[SUFFIX]", "t", "w", "o", "[PREFIX]", "▁", "o", "n", "e"]
    assert tokenizer.tokens(infill.tokenized("", "two", False).token_ids) == ["[SUFFIX]", "t", "w", "o", "[PREFIX]"]


def test_marks_in_a_clients_text_stay_tokens() -> None:
    """Repositories are written with them: <|repo_name|>, <|file_sep|>."""
    tokenizer = byte_level((*QWEN, *SPECIAL_TOKENS), is_special=False)
    infill = Infill.of(tokenizer)
    assert infill is not None
    ids = infill.tokenized("<|file_sep|>a.py\nx = ", "\n", True).token_ids
    assert tokenizer.id_of("<|file_sep|>") in ids
