"""Flags of other servers on `triptych serve`: vLLM's, and the most used ones of SGLang and llama.cpp.

A flag whose meaning exists here is translated. A flag that changes nothing here gets a note. Any other is refused with one line
that says what to use instead, or why there is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triptych_cli.errors import CommandError


@dataclass(frozen=True)
class ForeignFlag:
    """What becomes of a flag."""

    #: Flags of `triptych serve`, without dashes, that get its value; `model` is the argument MODEL.
    flags: tuple[str, ...] = ()
    #: Whether a value follows. A flag without one has a twin with `--no-`.
    takes_value: bool = True
    #: The other server's name of a value -> ours. For a flag without a value: "true" and "false" -> the flags to give instead.
    values: Mapping[str, str] = field(default_factory=dict)
    #: Value -> why it is refused.
    refused_values: Mapping[str, str] = field(default_factory=dict)
    #: Values that change nothing.
    neutral: tuple[str, ...] = ()
    #: Why other values are refused, and what to use instead. For a flag that is only noted: why it changes nothing.
    why: str = ""
    #: The flag is left out with a note, instead of refused.
    is_noted: bool = False
    #: The value is a number of tokens such as 32k.
    is_count: bool = False


def _to(*flags: str, **options: object) -> ForeignFlag:
    return ForeignFlag(flags, **options)  # type: ignore[arg-type]


def _switch(flag: str, *, is_opposite: bool = False) -> ForeignFlag:
    service, _, setting = flag.partition(".")
    on, off = f"{service}.{setting}", f"{service}.no-{setting}"
    return ForeignFlag(takes_value=False, values={"true": off if is_opposite else on, "false": on if is_opposite else off})


def _no(why: str, *neutral: str, takes_value: bool = True) -> ForeignFlag:
    return ForeignFlag(why=why, neutral=neutral, takes_value=takes_value)


def _note(why: str, *, takes_value: bool = True) -> ForeignFlag:
    return ForeignFlag(why=why, takes_value=takes_value, is_noted=True)


_OTHER_NODES = "node 0 is the one that serves; on each other host run `triptych engine --node-rank N` with the same nodes and model"
_DTYPES = {"half": "float16", "float": "float32"}
_LEVELS = {"trace": "DEBUG", "debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "critical": "ERROR"}
_NO_CHECKPOINT = (
    "what a checkpoint's weights are quantised with is read from its config.json; "
    "--quantization int8 or int4 quantises a plain one as it is loaded"
)
_PARALLEL = "an engine divides its model by --tensor-parallel-size only; --engines N starts N engines, each with the whole model"
_MAX_MODEL_LEN = _to("max-model-len", is_count=True, neutral=("auto", "-1"))
_MAX_NUM_SEQS = _to("engine.max-num-seqs")
_MEMORY_UTILIZATION = _to("engine.memory-utilization")
_LORA_DIR = "use --engine.lora-dir DIRECTORY, with an adapter in each subdirectory; requests name MODEL:SUBDIRECTORY"
_NO_SPECULATION = "no draft model is used; prompt lookup (vLLM's ngram) is on by itself where it pays, see --engine.prompt-lookup"
_NO_CODE = "code of checkpoints is never run; a model that needs its own code is not supported"
_NO_ROPE = "the model's configuration is taken as it is; change its config.json"
_OWN_CERTIFICATE = "use --gateway.https-dir DIRECTORY, with tls.crt and tls.key in it"
_NO_GGUF = "give the path of a GGUF file as the model; files are not downloaded one by one"

FOREIGN_FLAGS: dict[str, ForeignFlag] = {
    # vLLM: model
    "--model": _to("models"),
    "--dtype": _to("engine.dtype", "encoder.dtype", values=_DTYPES),
    "--max-model-len": _MAX_MODEL_LEN,
    "--quantization": _to(
        "quantization",
        neutral=("gguf",),
        refused_values=dict.fromkeys(
            ("awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "bitsandbytes", "compressed-tensors", "mxfp4", "modelopt",
             "torchao", "experts_int8", "auto-round"),
            _NO_CHECKPOINT,
        ),
    ),
    "--runner": _to("task", values={"pooling": "embed"}),
    "--convert": _to("task", neutral=("auto", "none")),
    "--tokenizer": _no("the tokenizer is the model's own"),
    "--tokenizer-mode": _no("there is one kind of tokenizer", "auto", "hf"),
    "--skip-tokenizer-init": _no("the frontend needs the tokenizer", takes_value=False),
    "--revision": _no("the hub's main revision is served; download another one and give its directory as MODEL", "main"),
    "--tokenizer-revision": _no("the tokenizer is the model's own", "main"),
    "--code-revision": _no(_NO_CODE, "main"),
    "--trust-remote-code": _no(f"{_NO_CODE}; leave the flag out", takes_value=False),
    "--hf-token": _no("everybody on this machine can see it there; set HF_TOKEN in the environment, or run `hf auth login`"),
    "--hf-overrides": _no(_NO_ROPE),
    "--rope-scaling": _no(_NO_ROPE),
    "--rope-theta": _no(_NO_ROPE),
    "--download-dir": _no("set HF_HUB_CACHE in the environment"),
    "--load-format": _no("weights are read from safetensors files", "auto", "safetensors"),
    "--generation-config": _to("frontend.generation-config", values={"vllm": "none"}),
    "--override-generation-config": _no("put them into the model's generation_config.json and give --generation-config auto"),
    "--enable-sleep-mode": _note("the engine's Sleep RPC is always there", takes_value=False),
    # vLLM: memory
    "--gpu-memory-utilization": _MEMORY_UTILIZATION,
    "--kv-cache-memory-bytes": _to("engine.kv-cache-memory"),
    "--kv-cache-dtype": _to("engine.kv-cache-dtype"),
    "--block-size": _to("engine.block-size"),
    "--enable-prefix-caching": _switch("engine.enable-prefix-caching"),
    "--swap-space": _note("evicted KV blocks are kept in memory with --engine.kv-offloading-memory 4G"),
    "--kv-offloading-size": _no("use --engine.kv-offloading-memory BYTES, e.g. 4G"),
    "--kv-transfer-config": _no("use --engines N --prefill-engines M: M of the N engines compute long prompts"),
    "--cpu-offload-gb": _no("weights are not offloaded", "0"),
    "--num-gpu-blocks-override": _no("use --engine.kv-cache-memory BYTES, e.g. 4G"),
    # vLLM: scheduling
    "--max-num-seqs": _MAX_NUM_SEQS,
    "--max-num-batched-tokens": _to("engine.max-num-batched-tokens", is_count=True),
    "--async-scheduling": _switch("engine.async-scheduling"),
    "--enforce-eager": _switch("engine.cuda-graphs", is_opposite=True),
    "--device": _to("engine.device", "encoder.device"),
    "--seed": _no('a seed belongs to a request: "seed" in its body', "0"),
    "--enable-chunked-prefill": _note("prompts are always computed in chunks", takes_value=False),
    "--scheduling-policy": _no("requests are served by priority, then in the order of arrival", "fcfs", "priority"),
    "--compilation-config": _note("models are not compiled"),
    "--max-logprobs": _no("at most 20 alternatives are reported", "20"),
    "--logits-processors": _no("logits processors in Python are not supported"),
    # vLLM: parallelism
    "--tensor-parallel-size": _to("engine.tensor-parallel-size"),
    "--pipeline-parallel-size": _no(_PARALLEL, "1"),
    "--nnodes": _to("engine.nnodes"),
    "--master-addr": _to("engine.master-addr"),
    "--master-port": _to("engine.master-port"),
    "--node-rank": _no(_OTHER_NODES, "0"),
    "--headless": _no(_OTHER_NODES, takes_value=False),
    "--data-parallel-size": _to("engines"),
    "--enable-expert-parallel": _no(_PARALLEL, takes_value=False),
    "--distributed-executor-backend": _to(
        "engine.distributed-executor-backend",
        refused_values={"ray": _PARALLEL, "external_launcher": _PARALLEL},
    ),
    "--disable-custom-all-reduce": _note("there is no all-reduce to choose", takes_value=False),
    # vLLM: answers
    "--enable-auto-tool-choice": _note("tools are on by default", takes_value=False),
    "--tool-call-parser": _to("frontend.tool-call-parser"),
    "--tool-parser-plugin": _no("plugins are not supported; --tool-call-parser names a format that Triptych knows"),
    "--reasoning-parser": _to("frontend.reasoning-parser"),
    "--chat-template": _to("frontend.chat-template"),
    "--chat-template-content-format": _no("the frontend finds the format from the template", "auto"),
    "--default-chat-template-kwargs": _no('they belong to a request: "chat_template_kwargs" in its body'),
    "--response-role": _no("answers have the role assistant", "assistant"),
    "--guided-decoding-backend": _note("there is one backend, llguidance"),
    "--structured-outputs-config": _note("there is one backend, llguidance"),
    # vLLM: media
    "--limit-mm-per-prompt": _no("use --frontend.max-media-items N, one limit for images, audio and video together"),
    "--mm-processor-kwargs": _no("options of processors belong to media items of a request"),
    "--allowed-local-media-path": _to("frontend.allowed-media-root"),
    # vLLM: adapters and drafts
    "--enable-lora": _no(_LORA_DIR, takes_value=False),
    "--lora-modules": _no(_LORA_DIR),
    "--max-loras": _to("engine.max-loras"),
    "--max-cpu-loras": _note("adapters that are not in use stay loaded, up to --engine.max-loras"),
    "--max-lora-rank": _note("adapters of ranks up to 512 are taken, each with its own"),
    "--speculative-config": _no(_NO_SPECULATION),
    "--speculative-model": _no(_NO_SPECULATION),
    # vLLM: HTTP
    "--api-key": _to("gateway.api-key"),
    "--uvicorn-log-level": _to("gateway.log-level", values=_LEVELS),
    "--disable-uvicorn-access-log": ForeignFlag(takes_value=False, values={"true": "gateway.no-access-log"}),
    "--disable-log-requests": _note("prompts are never logged", takes_value=False),
    "--enable-log-requests": _no("prompts are never logged; --gateway.audit-log FILE records who asked what of which model",
                                 takes_value=False),
    "--disable-log-stats": _note("statistics are not logged; they are metrics", takes_value=False),
    "--allowed-origins": _no("use --gateway.cors-allow-origins ORIGIN,ORIGIN"),
    "--ssl-certfile": _no(_OWN_CERTIFICATE),
    "--ssl-keyfile": _no(_OWN_CERTIFICATE),
    "--root-path": _no("the gateway serves at the root of its address; let the proxy in front of it remove the path", "/"),
    "--middleware": _no("middleware in Python is not supported"),
    "--otlp-traces-endpoint": _to("otlp-traces-endpoint"),
    # SGLang
    "--model-path": _to("models"),
    "--context-length": _MAX_MODEL_LEN,
    "--mem-fraction-static": _MEMORY_UTILIZATION,
    "--max-running-requests": _MAX_NUM_SEQS,
    "--chunked-prefill-size": _to(
        "engine.max-num-batched-tokens", refused_values={"-1": "prompts are always computed in chunks; give their size"}
    ),
    "--tp-size": _to("engine.tensor-parallel-size"),
    "--dp-size": _to("engines"),
    # llama.cpp
    "--ctx-size": _to("max-model-len", is_count=True, neutral=("0",)),
    "--parallel": _MAX_NUM_SEQS,
    "--threads": _to("engine.num-threads", neutral=("-1",)),
    "--alias": _to("served-model-name"),
    "--hf-repo": _to("models"),
    "--hf-file": _no(_NO_GGUF),
    "--n-gpu-layers": _no("all layers are on one device: --device cuda or --device cpu"),
    "--jinja": _note("the chat template is always used", takes_value=False),
    "--mmproj": _no("the encoder reads the towers from the model's own checkpoint"),
}  # fmt: skip
#: Short and other names.
_ALIASES = {
    "-tp": "--tensor-parallel-size", "--tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size", "--dp": "--data-parallel-size", "-q": "--quantization", "-m": "--model", "-c": "--ctx-size",
    "-np": "--parallel", "-t": "--threads", "-ngl": "--n-gpu-layers", "-hf": "--hf-repo", "-a": "--alias",
}  # fmt: skip
_COUNT_UNITS = {"k": 10**3, "m": 10**6, "K": 1 << 10, "M": 1 << 20}


def translate(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Translate the flags of other servers in a command line of `triptych serve`.

    A flag of Triptych with the same meaning wins: with `--engine.dtype`, `--dtype` reaches only the encoder.

    Returns:
        the command line in Triptych's own flags, and notes for the user about flags that change nothing.

    Raises:
        CommandError: a flag has no meaning here, or its value is missing.
    """
    ours: list[str] = []
    notes: list[str] = []
    queue = list(args)
    while queue:
        arg = queue.pop(0)
        if arg == "--":
            return [*ours, arg, *queue], notes
        written, equals, value = arg.partition("=")
        found = _find(written)
        if found is None:
            ours.append(arg)
            continue
        flag, is_negated = found
        if flag.takes_value and not equals:
            if not queue:
                raise CommandError(f"{written} needs a value", exit_code=2)
            value = queue.pop(0)
        if not flag.takes_value:
            if equals:
                raise CommandError(f"{written} takes no value", exit_code=2)
            value = "false" if is_negated else "true"
        ours += _translated(written, flag, value, args, notes)
    return ours, notes


def _find(written: str) -> tuple[ForeignFlag, bool] | None:
    """The flag, and whether it has `--no-` before it. vLLM takes underscores for dashes."""
    if not written.startswith("-"):
        return None
    name = "--" + written[2:].replace("_", "-") if written.startswith("--") else written
    name = _ALIASES.get(name, name)
    if name in FOREIGN_FLAGS:
        return FOREIGN_FLAGS[name], False
    positive = FOREIGN_FLAGS.get(name.replace("--no-", "--", 1)) if name.startswith("--no-") else None
    return (positive, True) if positive is not None and not positive.takes_value else None


def _translated(written: str, flag: ForeignFlag, value: str, given: Sequence[str], notes: list[str]) -> list[str]:
    if flag.is_noted:
        if value != "false":
            notes.append(f"{written} changes nothing: {flag.why}")
        elif flag.why:
            raise CommandError(f"{written} is not supported: {flag.why}", exit_code=2)
        return []
    if value in flag.neutral:
        return []
    if not flag.takes_value:
        if value in flag.values:
            return [f"--{flag.values[value]}"] if not _is_given(flag.values[value], given) else []
        if value == "false":
            return []
    why = flag.refused_values.get(value)
    if why is not None or not flag.flags:
        shown = f"{written} {value}" if flag.takes_value and why is not None else written
        raise CommandError(f"{shown} is not supported: {why or flag.why}", exit_code=2)
    value = _count(value) if flag.is_count else flag.values.get(value, value)
    return [arg for name in flag.flags for arg in _own(name, value, written, given)]


def _own(name: str, value: str, written: str, given: Sequence[str]) -> list[str]:
    if name == "models":
        return [value]
    return [f"--{name}={value}"] if written == f"--{name}" or not _is_given(name, given) else []


def _is_given(name: str, given: Sequence[str]) -> bool:
    """Whether the user gives a flag of Triptych, or the opposite of it."""
    service, dot, setting = name.partition(".")
    plain = f"--{service}{dot}{setting.removeprefix('no-')}"
    opposite = f"--{service}{dot}no-{setting.removeprefix('no-')}"
    return any(arg.partition("=")[0] in (plain, opposite) for arg in given)


def _count(value: str) -> str:
    """`32k` is 32000 and `32K` is 32768, as in vLLM. Other text is returned unchanged."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", value)
    return str(int(float(match[1]) * _COUNT_UNITS[match[2]])) if match else value


def help_text() -> str:
    """Which flags of other servers are taken, for `triptych serve --help`."""
    taken = sorted(name for name, flag in FOREIGN_FLAGS.items() if flag.flags or flag.values)
    return f"Flags of vLLM, SGLang and llama.cpp that mean the same here are taken too: {', '.join(taken)}."
