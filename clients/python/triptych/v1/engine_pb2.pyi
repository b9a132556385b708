from triptych.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "priority", "cache_salt", "media", "placeholders", "n", "constraint", "context", "num_output_tokens", "constraint_start", "affinity_key", "lora", "kv_source")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    PLACEHOLDERS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_START_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_KEY_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    KV_SOURCE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    priority: int
    cache_salt: str
    media: _containers.RepeatedCompositeFieldContainer[_common_pb2.MediaRef]
    placeholders: _containers.RepeatedCompositeFieldContainer[_common_pb2.PlaceholderRange]
    n: int
    constraint: _common_pb2.Constraint
    context: _common_pb2.CallContext
    num_output_tokens: int
    constraint_start: int
    affinity_key: str
    lora: str
    kv_source: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., media: _Optional[_Iterable[_Union[_common_pb2.MediaRef, _Mapping]]] = ..., placeholders: _Optional[_Iterable[_Union[_common_pb2.PlaceholderRange, _Mapping]]] = ..., n: _Optional[int] = ..., constraint: _Optional[_Union[_common_pb2.Constraint, _Mapping]] = ..., context: _Optional[_Union[_common_pb2.CallContext, _Mapping]] = ..., num_output_tokens: _Optional[int] = ..., constraint_start: _Optional[int] = ..., affinity_key: _Optional[str] = ..., lora: _Optional[str] = ..., kv_source: _Optional[str] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("add", "abort", "abort_sequences")
    ADD_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    ABORT_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[EngineRequest]
    abort: _containers.RepeatedScalarFieldContainer[str]
    abort_sequences: _containers.RepeatedCompositeFieldContainer[SequenceId]
    def __init__(self, add: _Optional[_Iterable[_Union[EngineRequest, _Mapping]]] = ..., abort: _Optional[_Iterable[str]] = ..., abort_sequences: _Optional[_Iterable[_Union[SequenceId, _Mapping]]] = ...) -> None: ...

class SequenceId(_message.Message):
    __slots__ = ("request_id", "index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("instance", "model", "going_away", "step", "outputs", "load")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GOING_AWAY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    instance: _common_pb2.Instance
    model: _common_pb2.ModelInfo
    going_away: bool
    step: int
    outputs: _containers.RepeatedCompositeFieldContainer[SequenceOutput]
    load: Load
    def __init__(self, instance: _Optional[_Union[_common_pb2.Instance, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., going_away: _Optional[bool] = ..., step: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[SequenceOutput, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: EngineRequest
    def __init__(self, request: _Optional[_Union[EngineRequest, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("output",)
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    output: SequenceOutput
    def __init__(self, output: _Optional[_Union[SequenceOutput, _Mapping]] = ...) -> None: ...

class EngineServiceEmbedRequest(_message.Message):
    __slots__ = ("requests", "pooling", "second_text_starts")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    SECOND_TEXT_STARTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[EngineRequest]
    pooling: _common_pb2.PoolingParams
    second_text_starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, requests: _Optional[_Iterable[_Union[EngineRequest, _Mapping]]] = ..., pooling: _Optional[_Union[_common_pb2.PoolingParams, _Mapping]] = ..., second_text_starts: _Optional[_Iterable[int]] = ...) -> None: ...

class EngineServiceEmbedResponse(_message.Message):
    __slots__ = ("embeddings", "usage")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[_common_pb2.Tensor]
    usage: _common_pb2.Usage
    def __init__(self, embeddings: _Optional[_Iterable[_Union[_common_pb2.Tensor, _Mapping]]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ...) -> None: ...

class EngineServiceDescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineServiceDescribeResponse(_message.Message):
    __slots__ = ("instance", "model", "load")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    instance: _common_pb2.Instance
    model: _common_pb2.ModelInfo
    load: Load
    def __init__(self, instance: _Optional[_Union[_common_pb2.Instance, _Mapping]] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted_request_ids",)
    ABORTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    aborted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, aborted_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchBlocksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchBlocksResponse(_message.Message):
    __slots__ = ("sequence", "is_whole", "added", "removed", "block_size")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    is_whole: bool
    added: _containers.RepeatedScalarFieldContainer[int]
    removed: _containers.RepeatedScalarFieldContainer[int]
    block_size: int
    def __init__(self, sequence: _Optional[int] = ..., is_whole: _Optional[bool] = ..., added: _Optional[_Iterable[int]] = ..., removed: _Optional[_Iterable[int]] = ..., block_size: _Optional[int] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("interval_s",)
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    def __init__(self, interval_s: _Optional[float] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: Load
    def __init__(self, load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class SequenceOutput(_message.Message):
    __slots__ = ("request_id", "index", "token_ids", "logprobs", "prompt_logprobs", "finish_reason", "stop_token_id", "usage", "timings", "error", "media")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish_reason: _common_pb2.FinishReason
    stop_token_id: int
    usage: _common_pb2.Usage
    timings: _common_pb2.Timings
    error: _common_pb2.RequestError
    media: _containers.RepeatedCompositeFieldContainer[MediaFetch]
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.RequestError, _Mapping]] = ..., media: _Optional[_Iterable[_Union[MediaFetch, _Mapping]]] = ...) -> None: ...

class MediaFetch(_message.Message):
    __slots__ = ("source", "fetch_s", "num_bytes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    source: _common_pb2.EmbeddingSource
    fetch_s: float
    num_bytes: int
    def __init__(self, source: _Optional[_Union[_common_pb2.EmbeddingSource, str]] = ..., fetch_s: _Optional[float] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_id", "logprob", "rank", "top_token_ids", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    rank: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_running", "num_waiting", "num_blocks", "num_free_blocks", "block_size", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "num_generated_tokens", "step_age_s", "longest_step_s", "num_recent", "is_restarting")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    LONGEST_STEP_S_FIELD_NUMBER: _ClassVar[int]
    NUM_RECENT_FIELD_NUMBER: _ClassVar[int]
    IS_RESTARTING_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_generated_tokens: int
    step_age_s: float
    longest_step_s: float
    num_recent: float
    is_restarting: bool
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., step_age_s: _Optional[float] = ..., longest_step_s: _Optional[float] = ..., num_recent: _Optional[float] = ..., is_restarting: _Optional[bool] = ...) -> None: ...
