"""What a runner is checked for before it serves, all against transformers' ordinary forward pass or against itself."""

from __future__ import annotations

import logging

import torch
from transformers import PretrainedConfig
from triptych.errors import UnsupportedModelError

from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.model.loader import NUM_PROBE_TOKENS
from triptych_engine.runner.model.parity import check_parity
from triptych_engine.runner.model.refusals import num_selected_keys
from triptych_engine.runner.model_runner import ModelRunner, RunnerParts

log = logging.getLogger(__name__)
#: Length of the prompt that shows whether results depend on the batch: more keys than the attention takes at once.
_INVARIANCE_TOKENS = 160


def num_probe_blocks(config: RunnerConfig) -> int:
    """Blocks of the KV cache that the checks need."""
    return -(-NUM_PROBE_TOKENS // config.block_size)


def check_structure(runner: ModelRunner, parts: RunnerParts) -> None:
    """Compare the paged path with transformers' ordinary forward pass, if rounding in the cache would hide small errors."""
    config, model = parts.config, parts.model
    exact = torch.promote_types(model.dtype, parts.cache_dtype)
    if parts.cache_dtype == torch.int8 and exact == torch.float16:
        exact = torch.float32  # no CPU kernel keeps float16
    if parts.cache_dtype != exact:
        parts.backend.allocate(model.layers, num_probe_blocks(config), config.block_size, exact)
        if model.cross is not None:
            model.cross.allocate(1, config.block_size, exact)
        check_parity(model, runner.prompt_logits(model.probe_token_ids.tolist(), num_chunks=2), config.model_name)


def check_cache(runner: ModelRunner, parts: RunnerParts) -> None:
    """Compare the paged path, in the cache that is used, with transformers' ordinary forward pass."""
    logits = runner.prompt_logits(parts.model.probe_token_ids.tolist(), num_chunks=2)
    check_parity(parts.model, logits, parts.config.model_name, cache_dtype=parts.cache_dtype)


def check_media(runner: ModelRunner, parts: RunnerParts) -> str | None:
    """The reason why a multimodal model cannot take media: given the embeddings of tokens, it fails or computes other logits than
    given the tokens. None if it can take media."""
    if parts.media is None:
        return None
    model, probe = parts.model, parts.model.probe_token_ids.tolist()
    decoder, model.decoder = model.decoder, None  # steps with deepstack use the model's own forward pass
    try:
        logits = runner.prompt_logits(probe, as_embeddings=True)
        check_parity(model, logits, parts.config.model_name, cache_dtype=parts.cache_dtype)
    # The model family's own code may require token ids.
    except Exception as error:
        log.warning("%s fails on embeddings: %s", model.config.model_type, error)
        return f"{model.config.model_type} does not run on embeddings alone; media items cannot be taken"
    finally:
        model.decoder = decoder
    return None


def invariance_tokens(runner: ModelRunner) -> int:
    """Length of the prompt on which batch invariance is checked: as many as the cache has room for."""
    num_blocks = min(runner.num_blocks, runner.size.num_window_blocks or runner.num_blocks)
    return min(_INVARIANCE_TOKENS, runner.config.max_model_len, num_blocks * runner.config.block_size)


def check_batch_invariance(runner: ModelRunner, model_config: PretrainedConfig) -> None:
    """Refuse the model unless a prompt has the same logits computed at once, in halves, in threes and token by token."""
    config, num_tokens = runner.config, invariance_tokens(runner)
    most = num_selected_keys(model_config)
    if most is not None and most < config.max_model_len:
        why = f"beyond {most} tokens: what attends to selected keys depends on what is computed with it"
        raise UnsupportedModelError(
            f"cannot serve {config.model_name} with --batch-invariant {why}; set max_model_len to that or less"
        )
    prompt = [i * 7919 % runner.vocab_size for i in range(num_tokens)]
    whole = runner.prompt_logits(prompt)
    for num_chunks in (2, -(-num_tokens // 3), num_tokens):
        if not torch.equal(runner.prompt_logits(prompt, num_chunks=num_chunks), whole):
            raise UnsupportedModelError(
                f"cannot serve {config.model_name} with --batch-invariant: a token's logits on {config.device} depend "
                "on what is computed with it (--dtype bfloat16 may help on a CPU)"
            )
