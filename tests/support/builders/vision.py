"""A text model that is small, but has the hidden size that the vision part needs."""

from __future__ import annotations

from pathlib import Path


def text_model(directory: Path) -> Path:
    """A tiny Llama with the projector's output size, and a tokenizer whose token 4 is reserved."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=576,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>"]
    words = ["[unknown]", "user", "assistant", "system", "What", "colour", "?", "Red"]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(special + words)}, "[unknown]"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=special[1], eos_token=special[2], unk_token=special[0])
    tokenizer.add_special_tokens({"extra_special_tokens": special[3:]})
    tokenizer.save_pretrained(directory)
    return directory
