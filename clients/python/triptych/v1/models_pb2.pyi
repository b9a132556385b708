from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_AWAKE: _ClassVar[ModelState]
    MODEL_STATE_ASLEEP: _ClassVar[ModelState]
    MODEL_STATE_DRAINING: _ClassVar[ModelState]
    MODEL_STATE_WAKING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_AWAKE: ModelState
MODEL_STATE_ASLEEP: ModelState
MODEL_STATE_DRAINING: ModelState
MODEL_STATE_WAKING: ModelState
MODEL_STATE_FAILED: ModelState

class ManagedModel(_message.Message):
    __slots__ = ("name", "source", "state", "pinned", "memory_bytes", "resident_bytes", "num_live_requests", "idle_s", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    state: ModelState
    pinned: bool
    memory_bytes: int
    resident_bytes: int
    num_live_requests: int
    idle_s: float
    error: str
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., pinned: _Optional[bool] = ..., memory_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., num_live_requests: _Optional[int] = ..., idle_s: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class ListManagedModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListManagedModelsResponse(_message.Message):
    __slots__ = ("models", "memory_bytes")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ManagedModel]
    memory_bytes: int
    def __init__(self, models: _Optional[_Iterable[_Union[ManagedModel, _Mapping]]] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("source", "name", "num_engines")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_ENGINES_FIELD_NUMBER: _ClassVar[int]
    source: str
    name: str
    num_engines: int
    def __init__(self, source: _Optional[str] = ..., name: _Optional[str] = ..., num_engines: _Optional[int] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ManagedModel
    def __init__(self, model: _Optional[_Union[ManagedModel, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SleepModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SleepModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ManagedModel
    def __init__(self, model: _Optional[_Union[ManagedModel, _Mapping]] = ...) -> None: ...

class WakeModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class WakeModelResponse(_message.Message):
    __slots__ = ("model", "was_asleep")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WAS_ASLEEP_FIELD_NUMBER: _ClassVar[int]
    model: ManagedModel
    was_asleep: bool
    def __init__(self, model: _Optional[_Union[ManagedModel, _Mapping]] = ..., was_asleep: _Optional[bool] = ...) -> None: ...

class PinModelRequest(_message.Message):
    __slots__ = ("name", "pinned")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    name: str
    pinned: bool
    def __init__(self, name: _Optional[str] = ..., pinned: _Optional[bool] = ...) -> None: ...

class PinModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ManagedModel
    def __init__(self, model: _Optional[_Union[ManagedModel, _Mapping]] = ...) -> None: ...
