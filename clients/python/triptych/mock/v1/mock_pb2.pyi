from triptych.v1 import common_pb2 as _common_pb2
from triptych.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Script(_message.Message):
    __slots__ = ("text", "reasoning", "tool_calls", "num_tokens", "token_bytes", "first_token_s", "token_s", "finish_reason", "media", "unknown_field", "fault")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    text: str
    reasoning: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[_generation_pb2.ToolCall]
    num_tokens: int
    token_bytes: int
    first_token_s: float
    token_s: float
    finish_reason: _common_pb2.FinishReason
    media: _containers.RepeatedCompositeFieldContainer[_generation_pb2.MediaReport]
    unknown_field: bool
    fault: Fault
    def __init__(self, text: _Optional[str] = ..., reasoning: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[_generation_pb2.ToolCall, _Mapping]]] = ..., num_tokens: _Optional[int] = ..., token_bytes: _Optional[int] = ..., first_token_s: _Optional[float] = ..., token_s: _Optional[float] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., media: _Optional[_Iterable[_Union[_generation_pb2.MediaReport, _Mapping]]] = ..., unknown_field: _Optional[bool] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("after_tokens", "num_calls", "error", "bare_code", "stall")
    AFTER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CALLS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BARE_CODE_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    after_tokens: int
    num_calls: int
    error: _common_pb2.RequestError
    bare_code: int
    stall: bool
    def __init__(self, after_tokens: _Optional[int] = ..., num_calls: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.RequestError, _Mapping]] = ..., bare_code: _Optional[int] = ..., stall: _Optional[bool] = ...) -> None: ...

class GetCallsRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetCallsResponse(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[SeenCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[SeenCall, _Mapping]]] = ...) -> None: ...

class SeenCall(_message.Message):
    __slots__ = ("method", "metadata", "timeout_s", "num_responses", "longest_send_s", "state", "media_bytes")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[SeenCall.State]
        STATE_RUNNING: _ClassVar[SeenCall.State]
        STATE_ENDED: _ClassVar[SeenCall.State]
        STATE_CANCELLED: _ClassVar[SeenCall.State]
    STATE_UNSPECIFIED: SeenCall.State
    STATE_RUNNING: SeenCall.State
    STATE_ENDED: SeenCall.State
    STATE_CANCELLED: SeenCall.State
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    NUM_RESPONSES_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SEND_S_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_BYTES_FIELD_NUMBER: _ClassVar[int]
    method: str
    metadata: _containers.ScalarMap[str, str]
    timeout_s: float
    num_responses: int
    longest_send_s: float
    state: SeenCall.State
    media_bytes: int
    def __init__(self, method: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., timeout_s: _Optional[float] = ..., num_responses: _Optional[int] = ..., longest_send_s: _Optional[float] = ..., state: _Optional[_Union[SeenCall.State, str]] = ..., media_bytes: _Optional[int] = ...) -> None: ...
