"""Arguments of `LLM` that are vLLM's, as settings of the services; and those that mean nothing here, which are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triptych.errors import InvalidRequestError

#: The engine's settings where nobody reads a text before it is complete: no text needs to go on while others begin.
THROUGHPUT: Mapping[str, object] = {"max_step_ms": 0}
#: vLLM's names of dtypes that have others here.
_DTYPES = {"half": "float16", "float": "float32"}
#: Argument -> its setting of the engine.
_ENGINE = {
    "dtype": "dtype",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_cache_memory": "kv_cache_memory",
    "gpu_memory_utilization": "memory_utilization",
    "enable_prefix_caching": "enable_prefix_caching",
    "async_scheduling": "async_scheduling",
    "device": "device",
    "tensor_parallel_size": "tensor_parallel_size",
    "distributed_executor_backend": "distributed_executor_backend",
}
#: Argument -> its setting of the frontend.
_FRONTEND = {"allowed_local_media_path": "allowed_media_root"}
#: Argument -> its option of `triptych serve`.
_SERVE = {"max_model_len", "quantization", "served_model_name", "task", "engines", "encoders"}
_OTHER_NAMES = {"kv_cache_memory_bytes": "kv_cache_memory"}
_ONE_DEVICE = "an engine divides its model by tensor_parallel_size only"
#: Argument of vLLM -> the values at which it changes nothing, and why others are refused.
_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "pipeline_parallel_size": ((None, 1), _ONE_DEVICE),
    "data_parallel_size": ((None, 1), "engines=N starts N engines, each with the whole model"),
    "swap_space": ((None, 0), "KV blocks are not swapped; a preempted request is computed again"),
    "cpu_offload_gb": ((None, 0), "weights are not offloaded"),
    "trust_remote_code": ((None, False), "code of checkpoints is never run"),
    "tokenizer": ((None,), "the tokenizer is the model's own"),
    "tokenizer_mode": ((None, "auto"), "there is one kind of tokenizer"),
    "skip_tokenizer_init": ((None, False), "the frontend needs the tokenizer"),
    "revision": ((None,), "a model has one revision; give the directory of another one as the model"),
    "tokenizer_revision": ((None,), "the tokenizer is the model's own"),
    "seed": ((None,), "seeds belong to requests: SamplingParams(seed=...)"),
    "limit_mm_per_prompt": ((None,), "the limit is one for all kinds: frontend={'max_media_items': N}"),
    "mm_processor_kwargs": ((None,), "options of processors belong to media items: MediaItem.processor_options"),
    "hf_overrides": ((None,), "the model's configuration is taken as it is"),
    "hf_token": ((None,), "set HF_TOKEN in the environment"),
    "enable_lora": ((None, False), "there are no LoRA adapters"),
    "speculative_config": ((None,), "no draft model is used; prompt lookup (vLLM's ngram) is on by itself where it pays"),
    "compilation_config": ((None,), "models are not compiled"),
    "disable_custom_all_reduce": ((None, False, True), "there is no all-reduce to choose"),
    "disable_log_stats": ((None, False, True), "there are no logged statistics"),
    "enable_chunked_prefill": ((None, True), "prompts are always computed in chunks"),
    "override_pooler_config": ((None,), "models are pooled as they were made"),
    "pooler_config": ((None,), "models are pooled as they were made"),
    "logits_processors": ((None,), "there are no logits processors in Python"),
    "max_logprobs": ((None, 20), "at most 20 alternatives are reported"),
}


def server_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `LocalServer` for those of `LLM`.

    Raises:
        InvalidRequestError: an argument of vLLM that cannot be honoured.
        TypeError: an argument that neither knows.
    """
    services: dict[str, dict[str, Any]] = {"engine": {}, "frontend": {}}
    options: dict[str, Any] = {}
    for given, value in arguments.items():
        name = _OTHER_NAMES.get(given, given)
        if name in _SERVE:
            options[name] = value
        elif name in _ENGINE:
            services["engine"][_ENGINE[name]] = _DTYPES.get(value, value) if name == "dtype" else value
        elif name in _FRONTEND:
            services["frontend"][_FRONTEND[name]] = value or None
        elif name == "enforce_eager":
            services["engine"]["cuda_graphs"] = None if value is None else not value
        elif name == "generation_config":
            services["frontend"]["generation_config"] = "none" if value == "vllm" else value
        elif name in ("runner", "convert"):
            options["task"] = _task(name, value) or options.get("task")
        else:
            _refuse(name, value)
    return {**options, **services}


def _task(name: str, value: object) -> str | None:
    tasks = {"auto": None, None: None, "generate": "generate", "pooling": "embed", "embed": "embed", "none": None}
    if value not in tasks:
        raise InvalidRequestError(f"{name}={value!r} is not supported; known are generate, pooling, embed", field=name, value=value)
    return tasks[value]


def _refuse(name: str, value: object) -> None:
    if name not in _REFUSED:
        raise TypeError(
            f"LLM() got an unexpected argument {name!r}; settings of a service go into engine, frontend, encoder or gateway"
        )
    neutral, why = _REFUSED[name]
    if not any(value is same or (value == same and type(value) is type(same)) for same in neutral):
        raise InvalidRequestError(f"{name}={value!r} is not supported: {why}", field=name, value=value)
