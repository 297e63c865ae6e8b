"""Jobs whose payloads have a schema in a file, without Spark and without a server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

import fastavro
from deltalake import DeltaTable

from jetcluster.pipeline import lakehouse
from jetcluster.pipeline.stop import Stop
from jetcluster.pipeline.tables.avro_rows import MARK, AvroFormat
from jetcluster.pipeline.tables.protobuf_rows import ProtobufFormat
from tests.unit.pipeline.tables.messages import field, form, many
from tests.unit.pipeline.test_lakehouse_job import FakeKeyed, FakeStream, asked, landed, watched


class Schemas:
    """Schemas of a form of payloads, an older and a newer one, in files; messages 1 and 2 are of the older one, message
    3 is of neither."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        if kind == "avro":
            fields: list[Any] = [{"name": "id", "type": "long"}]
            self._old = self._avro(fields)
            self._new = self._avro(
                [*fields, {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}]
            )
        else:
            self._old = form(field("id", "int64"))
            self._new = form(field("id", "int64"), many("tags", "string"))

    def _avro(self, fields: list[Any]) -> AvroFormat:
        return AvroFormat((json.dumps({"type": "record", "name": "R", "fields": fields}),))

    def payload(self, seq: int) -> bytes:
        schema, value = (self._old, {"id": seq}) if seq < 3 else (self._new, {"id": seq, "tags": ["a"]})
        if seq == 3:
            return b"\xff\xff\xff"
        if isinstance(schema, ProtobufFormat):
            return bytes(schema.type(**value).SerializeToString())
        file, (one,) = io.BytesIO(), schema.schemas
        fastavro.schemaless_writer(file, one.parsed, value)
        return MARK + one.fingerprint + file.getvalue()

    def words(self, *, new: bool = False) -> list[str]:
        words = ["--format", self._kind]
        if isinstance(self._old, AvroFormat) and isinstance(self._new, AvroFormat):
            for name, one in {"old": self._old, **({"new": self._new} if new else {})}.items():
                (self._folder / name).write_text(one.texts[0])
                words += ["--schema-file", str(self._folder / name)]
            return words
        there = self._new if new else self._old
        assert isinstance(there, ProtobufFormat)
        (self._folder / "set").write_bytes(there.descriptors)
        return [*words, "--schema-file", str(self._folder / "set"), "--message", there.message]


class Encoded(FakeStream):
    """A stream whose payloads have a schema."""

    schemas: Schemas

    def rows(self, start: int, end: int) -> Any:
        found = super().rows(start, end)
        payloads = pa.array([self.schemas.payload(seq) for seq in range(start, end)], pa.binary())
        return found.set_column(found.column_names.index("data"), "data", payloads)


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_a_schema_that_grows(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Any = watched(Encoded(3), monkeypatch)
    stream.schemas = schemas = Schemas(kind, tmp_path)
    words = ["--stream", "S", *schemas.words()]
    done = lakehouse.run(stream, asked(tmp_path, *words)).fields
    assert (done["rows"], done["dead_letters"]) == (2, 1)
    stream.last = 5
    words = ["--stream", "S", *schemas.words(new=True)]
    assert lakehouse.run(stream, asked(tmp_path, *words)).fields["rows"] == 2
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("_seq")
    assert table.select(["_seq", "id", "tags"]).to_pylist() == [
        {"_seq": 1, "id": 1, "tags": None}, {"_seq": 2, "id": 2, "tags": None},
        {"_seq": 4, "id": 4, "tags": ["a"]}, {"_seq": 5, "id": 5, "tags": ["a"]},
    ]  # fmt: skip
    (letter,) = DeltaTable(str(tmp_path / "t_dead_letters")).to_pyarrow_table().to_pylist()
    assert (letter["seq"], letter["data"]) == (3, b"\xff\xff\xff") and "it is no " in letter["why"]


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_values_of_a_bucket_have_a_schema(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that does not parse is a dead letter, and its key has no row."""
    stream: Any = watched(Encoded(4), monkeypatch)
    stream.schemas = schemas = Schemas(kind, tmp_path)
    job = FakeKeyed(stream, asked(tmp_path, "--bucket", "S", *schemas.words(new=True)), stream.ask(None, None))
    job.stream, job.absent = stream, []
    job.round(Stop())
    assert landed(tmp_path, "id") == [1, 2, 4] and job.dead == 1
