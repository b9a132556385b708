from google.protobuf import struct_pb2 as _struct_pb2
from triptych.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CacheTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_TIER_UNSPECIFIED: _ClassVar[CacheTier]
    CACHE_TIER_MISS: _ClassVar[CacheTier]
    CACHE_TIER_LOCAL: _ClassVar[CacheTier]
    CACHE_TIER_SHARED: _ClassVar[CacheTier]
    CACHE_TIER_JOINED: _ClassVar[CacheTier]
CACHE_TIER_UNSPECIFIED: CacheTier
CACHE_TIER_MISS: CacheTier
CACHE_TIER_LOCAL: CacheTier
CACHE_TIER_SHARED: CacheTier
CACHE_TIER_JOINED: CacheTier

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("model", "embedding_fingerprint", "modalities", "instance")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.ModelInfo
    embedding_fingerprint: bytes
    modalities: _containers.RepeatedScalarFieldContainer[_common_pb2.Modality]
    instance: _common_pb2.Instance
    def __init__(self, model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., embedding_fingerprint: _Optional[bytes] = ..., modalities: _Optional[_Iterable[_Union[_common_pb2.Modality, str]]] = ..., instance: _Optional[_Union[_common_pb2.Instance, _Mapping]] = ...) -> None: ...

class EncodeItem(_message.Message):
    __slots__ = ("key", "modality", "data", "processor_options", "tenant_salt")
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TENANT_SALT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    modality: _common_pb2.Modality
    data: bytes
    processor_options: _struct_pb2.Struct
    tenant_salt: str
    def __init__(self, key: _Optional[bytes] = ..., modality: _Optional[_Union[_common_pb2.Modality, str]] = ..., data: _Optional[bytes] = ..., processor_options: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., tenant_salt: _Optional[str] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("items", "lease_s")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[EncodeItem]
    lease_s: float
    def __init__(self, items: _Optional[_Iterable[_Union[EncodeItem, _Mapping]]] = ..., lease_s: _Optional[float] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EncodeResult]
    def __init__(self, results: _Optional[_Iterable[_Union[EncodeResult, _Mapping]]] = ...) -> None: ...

class EncodeResult(_message.Message):
    __slots__ = ("key", "lease_id", "num_tokens", "tier", "timings", "error")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    lease_id: str
    num_tokens: int
    tier: CacheTier
    timings: EncodeTimings
    error: _common_pb2.RequestError
    def __init__(self, key: _Optional[bytes] = ..., lease_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., tier: _Optional[_Union[CacheTier, str]] = ..., timings: _Optional[_Union[EncodeTimings, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.RequestError, _Mapping]] = ...) -> None: ...

class EncodeTimings(_message.Message):
    __slots__ = ("queue_s", "decode_s", "preprocess_s", "encode_s")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    PREPROCESS_S_FIELD_NUMBER: _ClassVar[int]
    ENCODE_S_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    decode_s: float
    preprocess_s: float
    encode_s: float
    def __init__(self, queue_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., preprocess_s: _Optional[float] = ..., encode_s: _Optional[float] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("keys", "chunk_bytes", "timeout_s")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    chunk_bytes: int
    timeout_s: float
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., chunk_bytes: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("key", "tensor_name", "header", "data", "last_chunk_of_tensor", "last_chunk_of_item", "error")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TENSOR_NAME_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_CHUNK_OF_TENSOR_FIELD_NUMBER: _ClassVar[int]
    LAST_CHUNK_OF_ITEM_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    tensor_name: str
    header: _common_pb2.Tensor
    data: bytes
    last_chunk_of_tensor: bool
    last_chunk_of_item: bool
    error: _common_pb2.RequestError
    def __init__(self, key: _Optional[bytes] = ..., tensor_name: _Optional[str] = ..., header: _Optional[_Union[_common_pb2.Tensor, _Mapping]] = ..., data: _Optional[bytes] = ..., last_chunk_of_tensor: _Optional[bool] = ..., last_chunk_of_item: _Optional[bool] = ..., error: _Optional[_Union[_common_pb2.RequestError, _Mapping]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[CacheTier]
    def __init__(self, tiers: _Optional[_Iterable[_Union[CacheTier, str]]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease_ids", "lease_s")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    lease_s: float
    def __init__(self, lease_ids: _Optional[_Iterable[str]] = ..., lease_s: _Optional[float] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("num_released",)
    NUM_RELEASED_FIELD_NUMBER: _ClassVar[int]
    num_released: int
    def __init__(self, num_released: _Optional[int] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("num_evicted",)
    NUM_EVICTED_FIELD_NUMBER: _ClassVar[int]
    num_evicted: int
    def __init__(self, num_evicted: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("num_entries", "used_bytes", "capacity_bytes", "leased_bytes", "num_leases", "queue_length", "num_local_hits", "num_shared_hits", "num_joined", "num_misses", "num_evictions", "num_store_failures", "num_failed")
    NUM_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NUM_LOCAL_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_JOINED_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSES_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    num_entries: int
    used_bytes: int
    capacity_bytes: int
    leased_bytes: int
    num_leases: int
    queue_length: int
    num_local_hits: int
    num_shared_hits: int
    num_joined: int
    num_misses: int
    num_evictions: int
    num_store_failures: int
    num_failed: int
    def __init__(self, num_entries: _Optional[int] = ..., used_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., num_leases: _Optional[int] = ..., queue_length: _Optional[int] = ..., num_local_hits: _Optional[int] = ..., num_shared_hits: _Optional[int] = ..., num_joined: _Optional[int] = ..., num_misses: _Optional[int] = ..., num_evictions: _Optional[int] = ..., num_store_failures: _Optional[int] = ..., num_failed: _Optional[int] = ...) -> None: ...

class WatchEvictionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchEvictionsResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ...) -> None: ...
