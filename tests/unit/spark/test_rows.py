"""Arrow rows as messages."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.arrow.schema import arrow_schema
from jetcluster.spark import sink_options
from jetcluster.spark.render import Rows
from jetcluster.spark.rows import RowError, RowReader, build, runs

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'jetcluster[spark]'")

RAW = b"NATS/1.0\r\nB: 1\r\na:2\r\nB: 3\r\n\r\n"


def reader(**more: str) -> RowReader:
    options = sink_options.parse({"servers": "nats://x", "stream": "S", **more})
    return RowReader(options, [b"a.>", b"b"])


def rows(columns: dict[str, list[Any]], **more: str) -> list[tuple[tuple[bytes, bytes, bytes], bytes | None]]:
    """(subject, header block, payload), and the id."""
    names = list(columns)
    schema = pa.schema([(n, pa.string()) if n == "msg_id" else arrow_schema([n]).field(0) for n in names])
    return listed(reader(**more).rows(pa.RecordBatch.from_pydict(columns, schema=schema)))


def listed(found: Rows) -> list[tuple[tuple[bytes, bytes, bytes], bytes | None]]:
    ids = [b""] * found.count if found.ids is None else found.ids.to_pylist()
    return [(tuple(message), msg_id) for message, msg_id in zip(found.messages(), ids, strict=True)]  # type: ignore[misc]


def test_all_columns() -> None:
    found = rows(
        {
            "subject": ["a.b", "b", "a.c"],
            "data": [b"x", None, b""],
            "headers": [None, [("K", ["1", "2"]), ("L", ["3"])], [("K", ["1"])]],
            "headers_raw": [None, None, RAW],
            "msg_id": ["i", None, None],
        }
    )
    assert found == [
        ((b"a.b", b"", b"x"), b"i"),
        ((b"b", b"NATS/1.0\r\nK: 1\r\nK: 2\r\nL: 3\r\n\r\n", b""), b""),
        ((b"a.c", RAW, b""), b""),
    ]


def test_strings_and_the_option_subject() -> None:
    batch = pa.RecordBatch.from_pydict({"data": ["é"]}, schema=pa.schema([("data", pa.string())]))
    assert listed(reader(subject="a.b").rows(batch)) == [((b"a.b", b"", "é".encode()), b"")]


def test_an_id_in_the_headers_is_the_rows_id() -> None:
    raw = b"NATS/1.0\r\nNats-Msg-Id: own\r\n\r\n"
    """It stays where it is, as null says; another id takes its place."""
    columns: dict[str, list[Any]] = {"subject": ["b"], "data": [b""], "headers_raw": [raw]}
    assert rows(columns) == [((b"b", raw, b""), None)]
    assert rows(columns | {"msg_id": ["own"]}) == [((b"b", raw, b""), None)]
    assert rows(columns | {"msg_id": ["other"]}) == [((b"b", b"NATS/1.0\r\n\r\n", b""), b"other")]
    assert rows(columns, idempotence="none") == [((b"b", raw, b""), b"")]


@pytest.mark.parametrize("msg_id", ["a\r\nNats-Rollup: all", "a\n", "\r", " a", "a\t", " "])
def test_ids_that_would_be_other_headers_or_other_ids(msg_id: str) -> None:
    """A row's value must not purge a stream, and rows whose ids differ in blanks would count as the same."""
    with pytest.raises(RowError, match="has a line break, or a blank at an end"):
        rows({"subject": ["b", "b"], "data": [b"", b""], "msg_id": ["good", msg_id]})
    assert rows({"subject": ["b"], "data": [b""], "msg_id": ["é a:b"]}) == [((b"b", b"", b""), "é a:b".encode())]


@pytest.mark.parametrize("subject", ["", "a", "a.*", "a..b", "c.d", None])
def test_subjects_that_the_stream_does_not_take(subject: str | None) -> None:
    with pytest.raises(RowError, match="subject"):
        rows({"subject": [subject], "data": [b""]})


def test_headers_with_a_meaning_are_refused_or_dropped() -> None:
    raw = b"NATS/1.0\r\nA: 1\r\nNats-Expected-Last-Sequence: 9\r\nNats-Batch-Id: x\r\nJc-Pipeline: j/1/2\r\n\r\n"
    columns: dict[str, list[Any]] = {"subject": ["b"], "data": [b""], "headers_raw": [raw]}
    with pytest.raises(RowError, match="has header Nats-Expected-Last-Sequence"):
        rows(columns)
    assert rows(columns, reservedHeaders="drop")[0][0][1] == b"NATS/1.0\r\nA: 1\r\n\r\n"
    columns["headers_raw"] = [b"NATS/1.0\r\nNats-Batch-Id: x\r\n\r\n"]
    assert rows(columns, reservedHeaders="drop")[0][0][1] == b""


def test_ids_are_reserved_behind_the_fence_only() -> None:
    columns = {"subject": ["b"], "data": [b""], "headers_raw": [b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"]}
    assert rows(columns)[0][1] is None
    with pytest.raises(RowError, match="has header Nats-Msg-Id"):
        rows(columns, idempotence="fence")


def test_rubbish() -> None:
    with pytest.raises(RowError, match="no header block"):
        rows({"subject": ["b"], "data": [b""], "headers_raw": [b"K: 1\r\n"]})
    for name in ("", "a:b", "a b", "a\r"):
        with pytest.raises(RowError, match="is no name of a header"):
            build([(name, ["x"])])
    with pytest.raises(RowError, match="line break"):
        build([("a", ["x\r\ny"])])
    assert build([("a", None), ("b", "one")]) == b"NATS/1.0\r\nb: one\r\n\r\n"
    assert build([("a", None)]) == b""


def test_a_subject_that_is_no_text_goes_on_as_it_is() -> None:
    columns = {"subject": ["a.\ufffd", "a.b"], "subject_raw": [b"a.\xff", None], "data": [b"1", b"2"]}
    kinds = [("subject", pa.string()), ("subject_raw", pa.binary()), ("data", pa.binary())]
    batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema(kinds))
    assert reader().rows(batch).subjects.to_pylist() == [b"a.\xff", b"a.b"]
    assert reader(subject="a.c").rows(batch).subjects.to_pylist() == [b"a.c", b"a.c"]


def keyed(rows: list[tuple[Any, ...]]) -> list[tuple[bytes, bytes, bytes]]:
    columns = list(zip(*rows, strict=True))
    names = ("key", "value", "operation")[: len(columns)]
    types = (pa.string(), pa.binary(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=False)]
    options = sink_options.parse({"servers": "nats://x", "bucket": "B"})
    found = RowReader(options, [b"$KV.B.>"]).rows(pa.RecordBatch.from_arrays(arrays, names))
    return [tuple(message) for message in found.messages()]  # type: ignore[misc]


def test_keys_and_operations_of_a_bucket() -> None:
    deleted = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    purged = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n"
    assert keyed([("a.b", b"1", None), ("c", b"2", "DEL"), ("c", None, "PURGE"), ("d/=", None, "PUT")]) == [
        (b"$KV.B.a.b", b"", b"1"), (b"$KV.B.c", deleted, b""), (b"$KV.B.c", purged, b""), (b"$KV.B.d/=", b"", b"")
    ]  # fmt: skip
    assert keyed([("a", b"1")]) == [(b"$KV.B.a", b"", b"1")]
    for key in (None, "", "a b", ".a", "a.", "a..b", "a*", "ü"):
        with pytest.raises(RowError, match=r"no key of a bucket|not one that can be published"):
            keyed([(key, b"", None)])
    with pytest.raises(RowError, match="not 'put'"):
        keyed([("a", b"", "put")])


def test_runs_have_each_subject_once() -> None:
    def cut(*subjects: bytes) -> list[list[bytes]]:
        held = Rows(pa.array(subjects, pa.binary()), None, pa.array([b""] * len(subjects), pa.binary()))
        return [part.subjects.to_pylist() for part in runs(held)]

    assert cut(b"a", b"b", b"c") == [[b"a", b"b", b"c"]]
    assert cut(b"a", b"b", b"a", b"a", b"c", b"b") == [[b"a", b"b"], [b"a"], [b"a", b"c", b"b"]]
