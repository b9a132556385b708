"""Settings of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict
from triptych.errors import StartupError
from triptych_common.model.pooling import TaskName
from triptych_common.settings import DEFAULT_MODEL, TARGETS_HELP, GrpcServiceSettings, Port, Targets, parse_bytes

#: Token budget of a step: (on a CPU, generates text) -> tokens.
_DEFAULT_BUDGETS = {(True, True): 512, (True, False): 2048, (False, True): 8192, (False, False): 16384}

#: The second tier of an engine that gives or takes blocks, in bytes.
_ROLE_MEMORY = 1 << 30


class EngineSettings(GrpcServiceSettings):
    """Flags of `triptych engine`; environment variables TRIPTYCH_ENGINE_*."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_ENGINE_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 50053
    model: Annotated[str, Field(description="Directory, built-in name or hub id.")] = DEFAULT_MODEL
    served_model_name: Annotated[str | None, Field(description="Name that clients use; by default the model's.")] = None
    task: Annotated[
        TaskName,
        Field(
            description="generate: text. embed: vectors, also of a model that generates. auto decides by the model's files, "
            "and finds classifiers and cross-encoders too."
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Field(description="auto takes the checkpoint's where the device computes in it, else float32."),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        Field(
            description="Store the weights of linear layers in 8 or 4 bits, on CPUs. int8: faster, a little less exact. int4: "
            "smallest, loses more than a file quantised with care."
        ),
    ] = "none"
    batch_invariant: Annotated[
        bool,
        Field(
            description="Compute a token's logits to the same bits whatever is computed with it, so that greedy and seeded answers "
            "repeat. A model that cannot is refused. float32 and quantised weights can get slower."
        ),
    ] = False
    vllm_grpc: Annotated[
        bool,
        Field(
            description="Serve vLLM's gRPC contract (vllm.grpc.engine.VllmEngine) at the port, too, for the router SMG. It needs "
            "the package smg-grpc-proto."
        ),
    ] = False
    kv_events: Annotated[
        str | None,
        Field(
            description="Where to publish what the prefix cache holds, over ZeroMQ as vLLM does, e.g. tcp://*:5557. Who listens "
            "learns the tokens of all prompts. It needs pyzmq and msgspec."
        ),
    ] = None
    kv_events_replay: Annotated[
        str | None,
        Field(description="Where subscribers of kv_events ask for batches that they have missed, e.g. tcp://*:5558."),
    ] = None
    kv_events_topic: Annotated[
        str, Field(description="Topic of the messages of kv_events. llm-d wants kv@<address of the pod>:<port of REST>@<model>.")
    ] = ""
    distributed_executor_backend: Annotated[
        Literal["uni", "mp"],
        Field(
            description="Where the model is computed: in the engine's process (uni), or in one of its own (mp), as vLLM calls "
            "them. With mp, a process that crashes or hangs is replaced, and ends at most the request that is the reason. "
            "Without prompt_lookup."
        ),
    ] = "uni"
    tensor_parallel_size: Annotated[
        int,
        Field(
            ge=1,
            description="Processes that compute the model together, with a share of its weights each: on a CPU with a part of the "
            "cores, on GPUs with one each. With more than one, distributed_executor_backend is mp.",
        ),
    ] = 1
    nnodes: Annotated[
        int,
        Field(
            ge=1,
            description="Hosts among which the ranks of tensor_parallel_size are divided equally. Each runs an engine with the "
            "same settings and its own node_rank, in a network that nobody else reaches.",
        ),
    ] = 1
    node_rank: Annotated[
        int, Field(ge=0, description="Number of this host. Node 0 serves requests; the others only compute for it.")
    ] = 0
    master_addr: Annotated[str, Field(description="Address by which the other nodes reach node 0.")] = "127.0.0.1"
    master_port: Annotated[Port, Field(description="Port at which node 0 listens for the other nodes.")] = 29501
    node_key_file: Annotated[
        Path | None,
        Field(description="File with a secret of the nodes, 32 bytes or more. Who has it can run code on all of them."),
    ] = None
    execute_model_timeout_s: Annotated[
        float, Field(gt=0, description="With mp, longest step, in seconds. A process that takes longer is replaced.")
    ] = 300.0
    simulate: Annotated[
        Path | None,
        Field(
            description="File with the costs of steps: this engine computes nothing, takes that long, and answers with made-up "
            "words."
        ),
    ] = None
    device: Annotated[
        str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu or cuda[:N]; auto takes a GPU where there is one.")
    ] = "auto"
    attention: Annotated[
        Literal["auto", "cpu", "cuda", "torch"],
        Field(description="Attention backend; auto takes the device's, and plain torch where that does not take the model."),
    ] = "auto"
    max_model_len: Annotated[
        int | None, Field(ge=2, description="Longest sequence, prompt and output together, in tokens; by default the model's.")
    ] = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096, description="Requests that run at once; further ones wait.")] = 256
    max_num_batched_tokens: Annotated[
        int | None,
        Field(
            ge=1,
            description="Token budget of a step; by default 512 on a CPU, 8192 on a GPU, and 2048 or 16384 for models "
            "that generate nothing.",
        ),
    ] = None
    max_step_ms: Annotated[
        float,
        Field(
            ge=0,
            description="Longest step while others decode, in milliseconds; prompts are cut to fit. The first twelve steps after a "
            "pause may take up to five times as long. With 0, only the token budget cuts prompts, for the highest throughput.",
        ),
    ] = 70.0
    stream_interval_ms: Annotated[
        float,
        Field(
            ge=0,
            le=1000,
            description="Least time between two messages to a stream, in milliseconds: tokens of shorter steps share one. First "
            "tokens and ends do not wait. With 0, each step sends its tokens.",
        ),
    ] = 16.0
    max_waiting: Annotated[int, Field(ge=0, description="Requests that may wait; further ones are refused.")] = 2048
    cuda_graphs: Annotated[bool, Field(description="Record decode steps once and replay them; on a GPU.")] = True
    async_scheduling: Annotated[
        bool | None,
        Field(description="Schedule a step while the one before it runs; by default on a GPU, and with mp."),
    ] = None
    block_size: Annotated[int, Field(ge=1, le=256, description="Tokens per KV block.")] = 16
    kv_cache_memory: Annotated[
        Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)] | None,
        Field(
            description="Memory of the KV cache, e.g. 512M or 2G. By default on a CPU half of what the weights leave of "
            "memory_limit, on a GPU what they leave of memory_utilization; not more than max_num_seqs requests of max_model_len "
            "tokens can use."
        ),
    ] = None
    memory_limit: Annotated[
        Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)] | None,
        Field(
            description="Memory that the engine may take on a CPU, weights and KV cache included; by default what is available. "
            "`triptych serve` sets it."
        ),
    ] = None
    memory_utilization: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="Share of memory_limit, or of a GPU's memory, that the engine takes, weights and KV cache included. By "
            "default 0.8 on a GPU.",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "bfloat16", "float32", "int8"],
        Field(
            description="Dtype of keys and values. auto takes the model's, and bfloat16 for a bfloat16 checkpoint that a CPU "
            "computes in float32. int8, on CPUs, holds almost twice the tokens of bfloat16."
        ),
    ] = "auto"
    prefault_kv_cache: Annotated[
        bool,
        Field(
            description="Take the memory of the KV cache, on a CPU, and of kv_offloading_memory from the system right after the "
            "start, up to 1 GiB of each. Without it, the first prompts take longer."
        ),
    ] = True
    kv_offloading_memory: Annotated[
        Annotated[int, BeforeValidator(parse_bytes), Field(ge=1 << 20)] | None,
        Field(
            description="Memory of the host for prefixes that the KV cache evicts, e.g. 4G. By default none, and 1G where kv_role "
            "is not both."
        ),
    ] = None
    kv_offloading_dir: Annotated[
        Path | None,
        Field(
            description="Directory for prefixes that do not fit into kv_offloading_memory either. Whoever can read it can learn "
            "what was asked."
        ),
    ] = None
    kv_offloading_dir_size: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(
            gt=0,
            description="Most bytes of this engine in kv_offloading_dir, e.g. 100G. Blocks of other models or settings do not "
            "count.",
        ),
    ] = 16 << 30
    kv_role: Annotated[
        Literal["both", "prefill", "decode"],
        Field(
            description="What this engine computes while there are others for the rest. prefill: long prompts. decode: output, and "
            "short prompts."
        ),
    ] = "both"
    kv_peer_addresses: Annotated[
        Targets, Field(description=f"host:port of the engines with kv_role prefill, {TARGETS_HELP}. Needed by kv_role decode.")
    ] = ()
    embedding_cache_memory: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(
            gt=0,
            description="Memory for embeddings of media that wait to be computed. Those that were computed are kept beside it "
            "until their request ends.",
        ),
    ] = 256 << 20
    encoder_addresses: Annotated[
        Targets, Field(description=f"host:port of the encoders, {TARGETS_HELP}. Needed by multimodal models.")
    ] = ()
    embedding_timeout_s: Annotated[
        float, Field(gt=0, le=3600, description="Longest wait for a media item's embeddings, its encoding included, in seconds.")
    ] = 60.0
    prompt_lookup: Annotated[
        bool,
        Field(
            description="Guess the next tokens where a text repeats itself, and verify them in one step, while that is faster; on "
            "a CPU, without async_scheduling."
        ),
    ] = True
    lora_dir: Annotated[
        Path | None,
        Field(
            description="Directory of adapters (LoRA) in PEFT's form, one in each subdirectory, which requests name as "
            "`model:subdirectory`."
        ),
    ] = None
    max_loras: Annotated[
        int,
        Field(ge=1, description="Adapters of lora_dir that may be loaded at once; those that are not in use make room for others."),
    ] = 8
    enable_prefix_caching: Annotated[bool, Field(description="Share the KV blocks of equal prefixes.")] = True
    num_threads: Annotated[
        int | None, Field(ge=1, description="Compute threads; by default as many as the cores that this process may use.")
    ] = None
    num_threads_while_encoding: Annotated[
        int | None,
        Field(
            ge=1,
            description="Compute threads while media are encoded; by default num_threads. Set it to the cores that an encoder on "
            "the same machine leaves.",
        ),
    ] = None

    @property
    def host_memory_bytes(self) -> int:
        """Memory of the second tier of the prefix cache; 0 for none."""
        return self.kv_offloading_memory or (0 if self.kv_role == "both" else _ROLE_MEMORY)

    def token_budget(self, *, on_cpu: bool, generates: bool, least: int = 0) -> int:
        """Most tokens of a step, and not fewer than `least`. Raises StartupError if it has no room for all sequences."""
        budget = max(self.max_num_batched_tokens or _DEFAULT_BUDGETS[on_cpu, generates], least)
        if budget < self.max_num_seqs:
            raise StartupError(f"max_num_batched_tokens ({budget}) must be at least max_num_seqs ({self.max_num_seqs})")
        return budget
