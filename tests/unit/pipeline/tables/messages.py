"""Protobuf message types without a compiler: descriptors as `protoc --include_imports` writes them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from jetcluster.pipeline.tables.protobuf_rows import ProtobufFormat

WELL_KNOWN: Any = (duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def descriptors(*fields: dict[str, Any], syntax: str = "proto3", more: Any = ()) -> bytes:
    """A FileDescriptorSet with message `shop.Order` of the fields, and messages `more` before it."""
    kinds: Any = descriptor_pb2
    found = kinds.FileDescriptorSet()
    for one in WELL_KNOWN:
        one.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="shop.proto", package="shop", syntax=syntax, dependency=[one.name for one in found.file])
    file.enum_type.add(name="State", value=[{"name": "NEW", "number": 0}, {"name": "PAID", "number": 5}])
    for one in more:
        file.message_type.add().CopyFrom(one)
    file.message_type.add().CopyFrom(message("Order", *fields))
    return bytes(found.SerializeToString())


def message(name: str, *fields: dict[str, Any], **more: Any) -> Any:
    kinds: Any = descriptor_pb2
    found = kinds.DescriptorProto(name=name, **more)
    for number, one in enumerate(fields, 1):
        found.field.add(**({"number": number, "label": 1} | one))
    optional = [one for one in found.field if one.proto3_optional]
    for one in optional:
        one.oneof_index = len(found.oneof_decl)
        found.oneof_decl.add(name=f"_{one.name}")
    return found


def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    """A field of a scalar type (`int32`), or of a message or enum by its full name (`.shop.State`)."""
    if kind.startswith("."):
        what = Field.TYPE_ENUM if kind == ".shop.State" else Field.TYPE_MESSAGE
        return {"name": name, "type": what, "type_name": kind} | more
    return {"name": name, "type": Field.Type.Value(f"TYPE_{kind.upper()}")} | more


def many(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return field(name, kind, label=Field.LABEL_REPEATED, **more)


def form(*fields: dict[str, Any], **more: Any) -> ProtobufFormat:
    return ProtobufFormat(descriptors(*fields, **more), "shop.Order")
