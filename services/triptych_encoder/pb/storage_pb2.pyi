from triptych.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredItem(_message.Message):
    __slots__ = ("num_tokens", "tensors")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    tensors: _containers.RepeatedCompositeFieldContainer[_common_pb2.NamedTensor]
    def __init__(self, num_tokens: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[_common_pb2.NamedTensor, _Mapping]]] = ...) -> None: ...
