"""Payloads of Protobuf messages to rows of a table's columns, or to dead letters with the reason.

A field that may be absent (a message, `optional`, one of a `oneof`, any of proto2) is null then; other ones of proto3
have their default, as they have it for any reader. Fields that the message type does not have are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import size_of
from jetcluster.pipeline.tables.payload import MisfitError, SchemaRows, ValueRoom, check_columns, check_size
from jetcluster.pipeline.tables.protobuf_count import ProtobufCount

Convert = Callable[[Any], Any]
_KINDS: Final = {
    Field.CPPTYPE_BOOL: pa.bool_(), Field.CPPTYPE_INT32: pa.int32(), Field.CPPTYPE_INT64: pa.int64(),
    Field.CPPTYPE_UINT32: pa.int64(), Field.CPPTYPE_UINT64: pa.decimal128(20, 0), Field.CPPTYPE_FLOAT: pa.float32(),
    Field.CPPTYPE_DOUBLE: pa.float64(), Field.CPPTYPE_ENUM: pa.string(),
}  # fmt: skip
_TIME: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)
"""The seconds of the years 1 to 9999, which are all that a Timestamp may have."""
_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))


@dataclass(frozen=True)
class ProtobufFormat:
    """Payloads of messages; `PayloadFormat` says what its members are."""

    descriptors: bytes
    """A FileDescriptorSet with all imports."""
    message: str
    """The full name of the message type."""

    @cached_property
    def type(self) -> Any:
        """The message's class. Raises UsageError."""
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(self.descriptors).file
            for one in files:
                pool.Add(one)
            names = [f"{one.package}.{kind.name}".lstrip(".") for one in files for kind in one.message_type]
        except (DecodeError, TypeError) as error:
            raise UsageError(
                f"it is no whole FileDescriptorSet (protoc --include_imports --descriptor_set_out=FILE): {error}"
            ) from None
        try:
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self.message))
        except KeyError:
            known = ", ".join(sorted(names)[:20])
            raise UsageError(
                f"--message {self.message}: there is none of that name, but {known or 'none at all'}"
            ) from None

    @property
    def columns(self) -> Any:
        return _fields(self.type.DESCRIPTOR, (), ValueRoom())[0]

    def rows(self, columns: Any, reserved: Sequence[str]) -> ProtobufRows:
        check_columns(self.columns, reserved)
        return ProtobufRows(columns, self.type)

    def __getstate__(self) -> dict[str, Any]:
        return {"descriptors": self.descriptors, "message": self.message}


class ProtobufRows(SchemaRows):
    """Rows of payloads of one message type."""

    def __init__(self, columns: Any, message: Any) -> None:
        super().__init__(columns)
        self._type = message
        self._name = message.DESCRIPTOR.full_name
        self._count = ProtobufCount(message.DESCRIPTOR, self._room)
        self._convert = _fields(message.DESCRIPTOR, (), self._room)[1]

    def _row(self, payload: bytes) -> Any:
        self._count.check(payload)
        self._room.used = 0  # it counts again what becomes columns
        message = self._type()
        try:
            message.ParseFromString(payload)
            if not message.IsInitialized():
                raise MisfitError(f"it is no {self._name}: {', '.join(message.FindInitializationErrors())} is missing")
            if payload and not message.ListFields() and len(UnknownFieldSet(message)):
                raise MisfitError(f"it is no {self._name}: it has none of its fields, but others")
            return self._convert(message)
        except (DecodeError, ValueError, TypeError, json_format.Error) as error:  # ValueError: UnicodeDecodeError, too
            raise MisfitError(f"it is no {self._name}: {error}") from None


def _fields(message: Any, inside: tuple[str, ...], room: ValueRoom) -> tuple[Any, Convert]:
    """Returns (struct of the columns, conversion of a message to a dict). `inside`: names of the types around it."""
    fields: list[Any] = []
    plan: list[tuple[str, bool, Convert]] = []
    for field in message.fields:
        kind, convert = _field(field, (*inside, message.full_name), room)
        fields.append(pa.field(field.name, kind))
        plan.append((field.name, field.has_presence and not field.is_repeated, convert))

    def row(value: Any) -> Mapping[str, Any]:
        return {
            name: convert(getattr(value, name)) if not may_lack or value.HasField(name) else None
            for name, may_lack, convert in plan
        }

    check_size(pa.struct(fields))
    return pa.struct(fields), row


def _field(field: Any, inside: tuple[str, ...], room: ValueRoom) -> tuple[Any, Convert]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        if "key" not in entry or "value" not in entry:
            raise UsageError(f"{field.full_name} is a map without keys or values: protoc writes none of that kind")
        key, value = entry["key"], entry["value"]
        (key_kind, key_of), (kind, value_of) = _one(key, inside, room), _one(value, inside, room)
        found = pa.map_(pa.field("key", key_kind, nullable=False), pa.field("value", kind))
        pairs = _counted(lambda items: [(key_of(name), value_of(items[name])) for name in items], 2, kind, room)
        return found, pairs
    kind, convert = _one(field, inside, room)
    if field.is_repeated:
        return pa.list_(pa.field("element", kind)), _counted(
            lambda items: [convert(one) for one in items], 1, kind, room
        )
    return kind, convert


def _counted(convert: Convert, least: int, kind: Any, room: ValueRoom) -> Convert:
    """Returns a conversion of items of a type that become `least` values and its fields each, within the room."""
    width = least + size_of(kind)

    def within(items: Any) -> Any:
        room.take(len(items) * width)
        return convert(items)

    return within


def _one(field: Any, inside: tuple[str, ...], room: ValueRoom) -> tuple[Any, Convert]:
    if field.message_type is not None:
        return _message(field.message_type, inside, room)
    if field.enum_type is not None:
        numbers = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: numbers.get(number) or str(number)
    if field.cpp_type == Field.CPPTYPE_STRING:
        return (pa.binary() if field.type == Field.TYPE_BYTES else pa.string()), _same
    return _KINDS[field.cpp_type], Decimal if field.cpp_type == Field.CPPTYPE_UINT64 else _same


def _message(kind: Any, inside: tuple[str, ...], room: ValueRoom) -> tuple[Any, Convert]:
    if kind.full_name == _TIME:
        return pa.timestamp("us", tz="UTC"), _micros
    if kind.full_name in _WRAPPERS:
        found, convert = _one(kind.fields_by_name["value"], inside, room)
        return found, lambda message: convert(message.value)
    if kind.full_name in _JSON or kind.full_name in inside:
        return pa.string(), _text
    if not kind.fields:
        return pa.bool_(), lambda message: True
    return _fields(kind, inside, room)


def _same(value: Any) -> Any:
    return value


def _micros(time: Any) -> int:
    if time.seconds not in _SECONDS or not 0 <= time.nanos < 1_000_000_000:
        raise ValueError(f"the time {time.seconds} s, {time.nanos} ns is not of the years 1 to 9999")
    return int(time.seconds * 1_000_000 + time.nanos // 1000)


def _text(message: Any) -> str:
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(found, ensure_ascii=False)
