"""Random calls of every RPC of a server, by the descriptors of its services."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from triptych.v1 import common_pb2

_INTEGERS = [0, 1, 2, 3, 7, 16, 255, *(1 << power for power in (8, 16)), *((1 << power) - 1 for power in (31, 32, 63, 64)), -1, -2]
_INTEGERS += [-(1 << 31), -(1 << 63)]
_FLOATS = [0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 1e-30, 1e30, 1e308, float("inf"), float("-inf"), float("nan")]
_TEXTS = [
    "", " ", "a", "user", "system", "tool", "Hi", "\0", "\n", "é", "\U0001f600", "\u202e", "{", "{}", "[1]", "null", "NaN",
    "{{ x }}", "{% for %}", "<image>", "data:image/png;base64,AAAA", "data:,x", "http://127.1/a", "http://[::1", "file:///etc/passwd",
    "../..", "a" * 300, "(" * 200, '{"type": "object"}', '{"$ref": "#"}', "(a+)+$", "root ::= root",
]  # fmt: skip
_MOST_DEPTH, _MOST_ITEMS = 5, 3
_Type = FieldDescriptor


class Mutator:
    """Makes messages of any type. The same seed makes the same messages."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, method: MethodDescriptor, examples: Sequence[Message]) -> Message:
        """An input of the method: one of the examples with a few changes, or one at random."""
        if examples and self.random.random() < 0.8:
            message = type(self.random.choice(examples))()
            message.CopyFrom(self.random.choice([one for one in examples if type(one) is type(message)]))
            for _ in range(self.random.randint(0, 4)):
                self._change(message)
            return message
        message = GetMessageClass(method.input_type)()
        self._fill(message, 0)
        return message

    def _change(self, message: Message) -> None:
        """Set, clear or repeat one field, here or further down."""
        inner = [one for _, value in message.ListFields() for one in _messages_in(value)]
        if inner and self.random.random() < 0.7:
            self._change(self.random.choice(inner))
            return
        fields = message.DESCRIPTOR.fields
        if fields:
            chosen = self.random.choice(list(fields))
            if self.random.random() < 0.2:
                message.ClearField(chosen.name)
            else:
                self._set(message, chosen, 2)

    def _fill(self, message: Message, depth: int) -> None:
        for one in message.DESCRIPTOR.fields:
            if self.random.random() < 1.5 / (depth + 2):
                self._set(message, one, depth)

    def _set(self, message: Message, one: FieldDescriptor, depth: int) -> None:
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            target = getattr(message, one.name)
            key = self._scalar(one.message_type.fields_by_name["key"])
            value_field = one.message_type.fields_by_name["value"]
            if value_field.message_type is None:
                target[key] = self._scalar(value_field)
            elif depth < _MOST_DEPTH:
                self._fill(target[key], depth + 1)
        elif one.is_repeated:
            target = getattr(message, one.name)
            for _ in range(self.random.randint(0, _MOST_ITEMS)):
                if one.message_type is None:
                    target.append(self._scalar(one))
                elif depth < _MOST_DEPTH:
                    self._fill(target.add(), depth + 1)
        elif one.message_type is not None:
            if depth < _MOST_DEPTH:
                inner = getattr(message, one.name)
                inner.SetInParent()
                self._fill(inner, depth + 1)
        else:
            setattr(message, one.name, self._scalar(one))

    def _scalar(self, one: FieldDescriptor) -> Any:
        kind, choose = one.cpp_type, self.random.choice
        if kind == _Type.CPPTYPE_BOOL:
            return choose([False, True])
        if kind == _Type.CPPTYPE_ENUM:
            return choose([*(value.number for value in one.enum_type.values), 99, -1])
        if kind == _Type.CPPTYPE_STRING:
            if one.type == _Type.TYPE_BYTES:
                return self.random.randbytes(choose([0, 1, 16, 32, 33, 200]))
            return choose(_TEXTS)
        if kind == _Type.CPPTYPE_DOUBLE:
            return choose(_FLOATS)
        if kind == _Type.CPPTYPE_FLOAT:
            return choose([value for value in _FLOATS if _fits_float(value)])
        low, high = {
            _Type.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
            _Type.CPPTYPE_UINT32: (0, (1 << 32) - 1),
            _Type.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
            _Type.CPPTYPE_UINT64: (0, (1 << 64) - 1),
        }[kind]
        return choose([value for value in _INTEGERS if low <= value <= high])


def _fits_float(value: float) -> bool:
    try:
        struct.pack("f", value)
    except OverflowError:
        return False
    return True


def _messages_in(value: Any) -> Iterator[Message]:
    if isinstance(value, Message):
        yield value
    elif not isinstance(value, (str, bytes, int, float)):
        items = value.values() if hasattr(value, "values") else value
        yield from (one for one in items if isinstance(one, Message))


@dataclass
class Fuzzer:
    """Calls methods of one server with random messages, and keeps what should not have happened.

    Args:
        examples: good requests, by the method's full name. A stream's are its messages in order.
        endless: methods whose streams end with their caller only, or wait as long as they are asked to.
    """

    channel: grpc.aio.Channel
    mutator: Mutator
    examples: Mapping[str, Sequence[Message]] = field(default_factory=dict)
    endless: frozenset[str] = frozenset()
    timeout_s: float = 5.0
    #: Statuses, by method.
    statuses: dict[str, list[grpc.StatusCode]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    async def run(
        self, services: Iterable[ServiceDescriptor], num_calls: int, num_parallel: int = 8, without: Sequence[str] = ()
    ) -> None:
        """Call each method as often, several at a time and in random order."""
        methods = [method for service in services for method in service.methods if method.name not in without]
        calls = [method for method in methods for _ in range(num_calls)]
        self.mutator.random.shuffle(calls)
        for start in range(0, len(calls), num_parallel):
            await asyncio.gather(*(self._call(method) for method in calls[start : start + num_parallel]))

    async def _call(self, method: MethodDescriptor) -> None:
        name = f"{method.containing_service.full_name}/{method.name}"
        examples = self.examples.get(name, ())
        sent = [self.mutator.message(method, examples)]
        if method.client_streaming:
            sent = [*(self.mutator.message(method, [example]) for example in examples), *sent]
        is_endless = name in self.endless
        code, found = await self._send(method, sent, 0.3 if is_endless else self.timeout_s)
        self.statuses.setdefault(name, []).append(code)
        forbidden = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
        if not is_endless:
            forbidden.add(grpc.StatusCode.DEADLINE_EXCEEDED)
        if code in forbidden or found:
            self.faults.append(f"{name} {code.name} {found} for {[repr(one)[:600] for one in sent]}")

    async def _send(self, method: MethodDescriptor, sent: list[Message], timeout_s: float) -> tuple[grpc.StatusCode, str]:
        kind = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
        made = getattr(self.channel, kind)(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        call = made(iter(sent) if method.client_streaming else sent[0], timeout=timeout_s)
        found = ""
        try:
            if method.server_streaming:
                async for response in call:
                    found = found or internal_error(response)
            else:
                found = internal_error(await call)
            return await call.code(), found
        except grpc.aio.AioRpcError as error:
            return error.code(), found or (error.details() or "" if error.code() is grpc.StatusCode.INTERNAL else "")


def internal_error(message: Message) -> str:
    """The first error of a single request in a response that is the service's own fault."""
    if isinstance(message, common_pb2.RequestError):
        return message.message if message.code in (grpc.StatusCode.UNKNOWN.value[0], grpc.StatusCode.INTERNAL.value[0]) else ""
    return next((error for _, value in message.ListFields() for one in _messages_in(value) if (error := internal_error(one))), "")
