"""Payloads of Avro and Protobuf in tables of both formats, and the types that Spark reads there."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

import fastavro
from google.protobuf import json_format

from jetcluster.client.connection import Connection
from tests.spark.jobs import fails, run
from tests.spark.lake import Lake
from tests.spark.streams import create, fill
from tests.unit.pipeline.tables.messages import descriptors, field, form, many, message

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]

NOON = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
AVRO: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "pieces", "type": "int"},
    {"name": "ratio", "type": "float"},
    {"name": "paid", "type": ["null", "boolean"]},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "shown", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 4}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
    {"name": "buyer", "type": {"type": "record", "name": "Buyer", "fields": [{"name": "city", "type": "string"}]}},
    {"name": "any", "type": ["int", "string"]},
]
IN_SPARK = {
    "id": "bigint", "pieces": "int", "ratio": "float", "paid": "boolean", "state": "string", "day": "date",
    "at": "timestamp", "shown": "timestamp_ntz", "amount": "decimal(9,2)", "digest": "binary",
    "tags": "array<string>", "counts": "map<string,bigint>", "buyer": "struct<city:string>", "any": "string",
}  # fmt: skip


def avro(n: int, schema: Any, **more: Any) -> bytes:
    value = {
        "id": n, "pieces": n, "ratio": 0.5, "paid": None, "state": "OLD", "day": NOON.date(), "at": NOON,
        "shown": NOON.replace(tzinfo=None), "amount": Decimal("1.50"), "digest": b"abcd", "tags": ["x"],
        "counts": {"k": n}, "buyer": {"city": "Bern"}, "any": n,
    }  # fmt: skip
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value | more)
    return file.getvalue()


def types_in_spark(spark: Any, lake: Lake) -> dict[str, str]:
    schema = spark.read.parquet(lake.delta_files()[-1]).schema
    return {field.name: field.dataType.simpleString() for field in schema if not field.name.startswith("_")}


def test_avro(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "LAKEAVRO")
    old = {"type": "record", "name": "shop.Order", "fields": AVRO}
    fill(connection, [(f"lakeavro.{n % 3}", avro(n, old)) for n in range(1, 31)])
    fill(connection, [("lakeavro.1", b"\xff" * 30), ("lakeavro.1", b"")])
    (tmp_path / "old.avsc").write_text(json.dumps(old))
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKEAVRO", *lake.words, "--format", "avro"]
    done = run(spark, servers, "lakehouse", *words, "--schema-file", tmp_path / "old.avsc").fields
    assert (done["rows"], done["dead_letters"]) == (30, 2)
    assert types_in_spark(spark, lake) == IN_SPARK
    (tmp_path / "new.avsc").write_text(json.dumps(old | {"fields": [*AVRO, {"name": "note", "type": "string"}]}))
    new = json.loads((tmp_path / "new.avsc").read_text())
    fill(connection, [("lakeavro.1", avro(33, new, note="n"))])
    both = ["--schema-file", tmp_path / "old.avsc", "--schema-file", tmp_path / "new.avsc"]
    assert run(spark, servers, "lakehouse", *words, *both).fields["rows"] == 1
    found = lake.rows("_seq", "id", "at", "shown", "amount", "digest", "tags", "buyer", "any", "note")
    assert found[0] == (
        1,
        1,
        NOON,
        NOON.replace(tzinfo=None),
        Decimal("1.50"),
        b"abcd",
        ["x"],
        {"city": "Bern"},
        "1",
        None,
    )
    assert [row[0] for row in found] == [*range(1, 31), 33] and found[-1][-1] == "n"
    assert [seq for seq, _ in lake.rows("seq", "data", dead=True)] == [31, 32]
    (tmp_path / "new.avsc").write_text(json.dumps(old | {"fields": [{"name": "id", "type": "string"}]}))
    text, code = fails(spark, servers, "lakehouse", *words, "--schema-file", tmp_path / "new.avsc")
    assert (code, "column id is" in text) == (2, True), text


def test_protobuf(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "LAKEPROTO")
    line = message("Line", field("sku", "string"), field("pieces", "uint32"))
    fields = [
        field("id", "uint64"), field("name", "string"), field("at", ".google.protobuf.Timestamp"),
        field("state", ".shop.State"), many("lines", ".shop.Line"), field("more", ".google.protobuf.Struct"),
        field("checked", ".google.protobuf.BoolValue"), field("data", "bytes"),
    ]  # fmt: skip
    there = form(*fields, more=[line])
    value = {"at": "2026-11-29T12:00:00Z", "state": "PAID", "lines": [{"sku": "a", "pieces": 2}], "more": {"a": 1}}
    payloads = [json_format.ParseDict(value | {"id": n}, there.type()).SerializeToString() for n in range(1, 21)]
    fill(connection, [(f"lakeproto.{n % 3}", payload) for n, payload in enumerate(payloads)])
    fill(connection, [("lakeproto.1", b"no message"), ("lakeproto.1", b"")])
    (tmp_path / "set").write_bytes(there.descriptors)
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKEPROTO", *lake.words, "--format", "protobuf", "--message", "shop.Order"]
    words += ["--schema-file", str(tmp_path / "set")]
    done = run(spark, servers, "lakehouse", *words).fields
    assert (done["rows"], done["dead_letters"]) == (21, 1)
    assert types_in_spark(spark, lake) == {
        "id": "decimal(20,0)", "name": "string", "at": "timestamp", "state": "string",
        "lines": "array<struct<sku:string,pieces:bigint>>", "more": "string", "checked": "boolean", "data": "binary",
    }  # fmt: skip
    bigger = message("Line", field("sku", "string"), field("pieces", "uint32"), field("price", "double"))
    (tmp_path / "set").write_bytes(descriptors(*fields, field("note", "string"), more=[bigger]))
    fill(connection, [("lakeproto.1", payloads[0])])
    assert run(spark, servers, "lakehouse", *words).fields["rows"] == 1
    found = lake.rows("_seq", "id", "name", "at", "state", "more", "note")
    assert found[0] == (1, Decimal(1), "", NOON, "PAID", '{"a": 1.0}', None)
    assert found[-2:] == [(22, Decimal(0), "", None, "NEW", None, None), (23, *found[0][1:-1], "")]
    assert [seq for seq, _ in lake.rows("seq", "data", dead=True)] == [21]
