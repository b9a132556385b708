from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldRequest(_message.Message):
    __slots__ = ("block_hashes", "layout")
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    layout: str
    def __init__(self, block_hashes: _Optional[_Iterable[bytes]] = ..., layout: _Optional[str] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("lease_id", "lease_s", "digests", "host")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_s: float
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    host: HostSlots
    def __init__(self, lease_id: _Optional[str] = ..., lease_s: _Optional[float] = ..., digests: _Optional[_Iterable[bytes]] = ..., host: _Optional[_Union[HostSlots, _Mapping]] = ...) -> None: ...

class HostSlots(_message.Message):
    __slots__ = ("boot_id", "path", "device", "inode", "size_bytes", "slots")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    path: str
    device: int
    inode: int
    size_bytes: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, boot_id: _Optional[str] = ..., path: _Optional[str] = ..., device: _Optional[int] = ..., inode: _Optional[int] = ..., size_bytes: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("lease_id", "first_block")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    first_block: int
    def __init__(self, lease_id: _Optional[str] = ..., first_block: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class KvServiceReleaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class KvServiceReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
