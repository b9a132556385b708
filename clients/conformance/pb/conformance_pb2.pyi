from triptych.mock.v1 import mock_pb2 as _mock_pb2
from triptych.v1 import common_pb2 as _common_pb2
from triptych.v1 import generation_pb2 as _generation_pb2
from triptych.v1 import detokenize_pb2 as _detokenize_pb2
from triptych.v1 import preprocess_pb2 as _preprocess_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Suite(_message.Message):
    __slots__ = ("cases",)
    CASES_FIELD_NUMBER: _ClassVar[int]
    cases: _containers.RepeatedCompositeFieldContainer[Case]
    def __init__(self, cases: _Optional[_Iterable[_Union[Case, _Mapping]]] = ...) -> None: ...

class Case(_message.Message):
    __slots__ = ("name", "description", "call", "expected", "real_stack", "direct")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    REAL_STACK_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    call: Call
    expected: Expected
    real_stack: bool
    direct: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., expected: _Optional[_Union[Expected, _Mapping]] = ..., real_stack: _Optional[bool] = ..., direct: _Optional[bool] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("name", "address", "api_key", "tls", "request_id", "timeout_s", "cancel_after_responses", "pause_s", "chat", "chat_stream", "complete", "complete_stream", "embed", "score", "classify", "tokenize", "detokenize", "preprocess", "list_models")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CANCEL_AFTER_RESPONSES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    CHAT_STREAM_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_STREAM_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CLASSIFY_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_FIELD_NUMBER: _ClassVar[int]
    PREPROCESS_FIELD_NUMBER: _ClassVar[int]
    LIST_MODELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    api_key: str
    tls: Tls
    request_id: str
    timeout_s: float
    cancel_after_responses: int
    pause_s: float
    chat: _generation_pb2.ChatRequest
    chat_stream: _generation_pb2.ChatStreamRequest
    complete: _generation_pb2.CompleteRequest
    complete_stream: _generation_pb2.CompleteStreamRequest
    embed: _generation_pb2.EmbedRequest
    score: _generation_pb2.ScoreRequest
    classify: _generation_pb2.ClassifyRequest
    tokenize: _preprocess_pb2.TokenizeRequest
    detokenize: _detokenize_pb2.DetokenizeRequest
    preprocess: _preprocess_pb2.PreprocessRequest
    list_models: _generation_pb2.ListModelsRequest
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., api_key: _Optional[str] = ..., tls: _Optional[_Union[Tls, _Mapping]] = ..., request_id: _Optional[str] = ..., timeout_s: _Optional[float] = ..., cancel_after_responses: _Optional[int] = ..., pause_s: _Optional[float] = ..., chat: _Optional[_Union[_generation_pb2.ChatRequest, _Mapping]] = ..., chat_stream: _Optional[_Union[_generation_pb2.ChatStreamRequest, _Mapping]] = ..., complete: _Optional[_Union[_generation_pb2.CompleteRequest, _Mapping]] = ..., complete_stream: _Optional[_Union[_generation_pb2.CompleteStreamRequest, _Mapping]] = ..., embed: _Optional[_Union[_generation_pb2.EmbedRequest, _Mapping]] = ..., score: _Optional[_Union[_generation_pb2.ScoreRequest, _Mapping]] = ..., classify: _Optional[_Union[_generation_pb2.ClassifyRequest, _Mapping]] = ..., tokenize: _Optional[_Union[_preprocess_pb2.TokenizeRequest, _Mapping]] = ..., detokenize: _Optional[_Union[_detokenize_pb2.DetokenizeRequest, _Mapping]] = ..., preprocess: _Optional[_Union[_preprocess_pb2.PreprocessRequest, _Mapping]] = ..., list_models: _Optional[_Union[_generation_pb2.ListModelsRequest, _Mapping]] = ...) -> None: ...

class Tls(_message.Message):
    __slots__ = ("root_certificates", "certificate", "private_key", "server_name")
    ROOT_CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    root_certificates: str
    certificate: str
    private_key: str
    server_name: str
    def __init__(self, root_certificates: _Optional[str] = ..., certificate: _Optional[str] = ..., private_key: _Optional[str] = ..., server_name: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("name", "chat_stream", "complete_stream", "chat", "complete", "embed", "score", "classify", "tokenize", "detokenize", "preprocess", "list_models", "trailing_media", "error", "error_class", "error_request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHAT_STREAM_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_STREAM_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CLASSIFY_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_FIELD_NUMBER: _ClassVar[int]
    DETOKENIZE_FIELD_NUMBER: _ClassVar[int]
    PREPROCESS_FIELD_NUMBER: _ClassVar[int]
    LIST_MODELS_FIELD_NUMBER: _ClassVar[int]
    TRAILING_MEDIA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    chat_stream: _containers.RepeatedCompositeFieldContainer[_generation_pb2.ChatStreamResponse]
    complete_stream: _containers.RepeatedCompositeFieldContainer[_generation_pb2.CompleteStreamResponse]
    chat: _generation_pb2.ChatResponse
    complete: _generation_pb2.CompleteResponse
    embed: _generation_pb2.EmbedResponse
    score: _generation_pb2.ScoreResponse
    classify: _generation_pb2.ClassifyResponse
    tokenize: _preprocess_pb2.TokenizeResponse
    detokenize: _detokenize_pb2.DetokenizeResponse
    preprocess: _preprocess_pb2.PreprocessResponse
    list_models: _generation_pb2.ListModelsResponse
    trailing_media: _containers.RepeatedCompositeFieldContainer[_generation_pb2.MediaReport]
    error: _common_pb2.RequestError
    error_class: str
    error_request_id: str
    def __init__(self, name: _Optional[str] = ..., chat_stream: _Optional[_Iterable[_Union[_generation_pb2.ChatStreamResponse, _Mapping]]] = ..., complete_stream: _Optional[_Iterable[_Union[_generation_pb2.CompleteStreamResponse, _Mapping]]] = ..., chat: _Optional[_Union[_generation_pb2.ChatResponse, _Mapping]] = ..., complete: _Optional[_Union[_generation_pb2.CompleteResponse, _Mapping]] = ..., embed: _Optional[_Union[_generation_pb2.EmbedResponse, _Mapping]] = ..., score: _Optional[_Union[_generation_pb2.ScoreResponse, _Mapping]] = ..., classify: _Optional[_Union[_generation_pb2.ClassifyResponse, _Mapping]] = ..., tokenize: _Optional[_Union[_preprocess_pb2.TokenizeResponse, _Mapping]] = ..., detokenize: _Optional[_Union[_detokenize_pb2.DetokenizeResponse, _Mapping]] = ..., preprocess: _Optional[_Union[_preprocess_pb2.PreprocessResponse, _Mapping]] = ..., list_models: _Optional[_Union[_generation_pb2.ListModelsResponse, _Mapping]] = ..., trailing_media: _Optional[_Iterable[_Union[_generation_pb2.MediaReport, _Mapping]]] = ..., error: _Optional[_Union[_common_pb2.RequestError, _Mapping]] = ..., error_class: _Optional[str] = ..., error_request_id: _Optional[str] = ...) -> None: ...

class Expected(_message.Message):
    __slots__ = ("outcome", "seen", "min_longest_send_s", "text", "present", "max_s")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    MIN_LONGEST_SEND_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    seen: _containers.RepeatedCompositeFieldContainer[_mock_pb2.SeenCall]
    min_longest_send_s: float
    text: str
    present: _containers.RepeatedScalarFieldContainer[str]
    max_s: float
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ..., seen: _Optional[_Iterable[_Union[_mock_pb2.SeenCall, _Mapping]]] = ..., min_longest_send_s: _Optional[float] = ..., text: _Optional[str] = ..., present: _Optional[_Iterable[str]] = ..., max_s: _Optional[float] = ...) -> None: ...
