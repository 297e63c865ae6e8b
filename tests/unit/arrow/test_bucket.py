"""`read_bucket` against a scripted server (arrow/bucket.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[arrow]'")

import pyarrow as pa

from jetcluster.arrow import bucket
from jetcluster.arrow.bucket import BucketColumns
from jetcluster.arrow.options import OptionError
from jetcluster.arrow.schema import BUCKET_TYPES, arrow_schema
from tests.unit.arrow.fake_server import T0, Row, StreamPeer, store_of

DELETED = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
PURGED = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n"
AGED = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"
REMOVED = b"NATS/1.0\r\nNats-Marker-Reason: Remove\r\n\r\n"
OTHER = b"NATS/1.0\r\nNats-Msg-Id: 5\r\n\r\n"


def row(key: str, value: bytes = b"", block: bytes = b"") -> Row:
    return f"$KV.S.{key}", block, value


ROWS = [
    row("a", b"1"), row("b.x", b"2"), row("c", b"3"), row("a", b"4", OTHER), row("c", block=DELETED), row("b.y", b"6"),
    row("d", b"7"), row("d", block=AGED), row("e", block=PURGED), row("f", block=REMOVED),
]  # fmt: skip


class BucketPeer(StreamPeer):
    """The stream S of the scripted server under the name KV_S."""

    def _reply(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
        return super()._reply(subject.replace(b"KV_S", b"S"), reply, headers, payload)

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        return super().info(request) | {"config": {"name": "KV_S", "allow_direct": True, "retention": "limits"}}


@pytest.fixture
def peer() -> Iterator[BucketPeer]:
    store = store_of(ROWS)
    with BucketPeer(store, streams={id(store): "KV_S"}) as made:
        yield made


def read(peer: BucketPeer, *keys: Any, **given: Any) -> dict[str, list[Any]]:
    table = bucket.read_bucket(peer.url, "S", *keys, connections=1, **given).read_all()
    assert table.schema == bucket.SCHEMA
    table.validate(full=True)
    return dict(table.sort_by("revision").to_pydict())


def test_keys_and_their_values(peer: BucketPeer) -> None:
    found = read(peer)
    assert found["key"] == ["b.x", "a", "b.y"] and found["value"] == [b"2", b"4", b"6"]
    assert found["operation"] == ["PUT"] * 3 and found["revision"] == [2, 4, 6]
    created = bucket.read_bucket(peer.url, "S", connections=1).read_all().sort_by("revision").column("created")
    assert created.cast(pa.int64()).to_pylist() == [T0 + 1000, T0 + 3000, T0 + 5000]


def test_deleted_keys_and_why(peer: BucketPeer) -> None:
    found = read(peer, deleted=True)
    pairs = dict(zip(found["key"], found["operation"], strict=True))
    assert pairs == {"a": "PUT", "b.x": "PUT", "b.y": "PUT", "c": "DEL", "d": "PURGE", "e": "PURGE", "f": "DEL"}


def test_history_is_all_that_is_stored(peer: BucketPeer) -> None:
    found = read(peer, history=True)
    assert found["revision"] == list(range(1, 11)) and found["key"][:4] == ["a", "b.x", "c", "a"]
    assert found["operation"] == ["PUT"] * 4 + ["DEL", "PUT", "PUT", "PURGE", "PURGE", "DEL"]


def test_some_keys(peer: BucketPeer) -> None:
    assert read(peer, "b.*")["key"] == ["b.x", "b.y"]
    assert read(peer, ["a", "b.y"])["key"] == ["a", "b.y"]
    assert read(peer, "b.*", history=True)["key"] == ["b.x", "b.y"]
    assert read(peer, "none") == {name: [] for name in bucket.SCHEMA.names}


def test_as_of_a_revision(peer: BucketPeer) -> None:
    found = read(peer, as_of=3)
    assert found["key"] == ["a", "b.x", "c"] and found["value"] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_as_of_what_is_no_revision(peer: BucketPeer, wrong: int) -> None:
    with pytest.raises(OptionError, match=rf"as_of is a revision, from 1 on, or a time, not {wrong}"):
        read(peer, as_of=wrong)
    assert peer.gets == 0


def test_a_key_that_changes_meanwhile_is_there_with_its_newer_value(peer: BucketPeer) -> None:
    """As of a sequence it is missing: its value of then is gone."""
    changed = store_of([*ROWS, row("a", b"11")], gaps=[1, 4])
    peer.streams[id(changed)] = "KV_S"
    peer.replicas = [changed]
    found = read(peer)
    assert found["key"] == ["b.x", "b.y", "a"] and found["value"] == [b"2", b"6", b"11"]
    assert read(peer, as_of=10)["key"] == ["b.x", "b.y"]


def test_answers_that_are_cut_short_give_each_key_once() -> None:
    rows = [row(f"k{n}", b"v" * 50) for n in range(40)]
    store = store_of(rows)
    with BucketPeer(store, streams={id(store): "KV_S"}) as peer:
        found = read(peer, fetch_bytes=500)
        assert sorted(found["key"]) == sorted(f"k{n}" for n in range(40)) and peer.gets > 3


def test_a_key_that_was_shown_and_changes_before_the_next_page_is_there_once() -> None:
    rows = [row(f"k{n}", b"v" * 50) for n in range(40)]
    before, after = store_of(rows), store_of([*rows, row("k0", b"new")], gaps=[1])
    with BucketPeer(before, [before, after], streams={id(before): "KV_S", id(after): "KV_S"}) as peer:
        found = read(peer, fetch_bytes=500)
        assert sorted(found["key"]) == sorted(f"k{n}" for n in range(40)) and peer.gets > 3
        assert found["key"][0] == "k0" and found["revision"][0] == 1


def test_names_that_are_none(peer: BucketPeer) -> None:
    for wrong in ("", "a.b", "a b"):
        with pytest.raises(OptionError, match=r"is no bucket's name|is no stream's name"):
            bucket.read_bucket(peer.url, wrong)


def test_columns_of_a_bucket_from_those_of_its_stream() -> None:
    blocks = [None, b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"]
    held = {
        "subject": pa.array(["$KV.B.a.b", "$KV.B.$KV.x.y", "$KV.B.c"]),
        "data": pa.array([b"1", b"2", None], pa.binary()),
        "headers_raw": pa.array(blocks, pa.binary()),
        "seq": pa.array([4, 6, 7]),
        "time": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
    }
    for names in (["key", "value", "operation", "revision", "created"], ["revision", "value"], ["key"]):
        columns = BucketColumns(names)
        made = columns.convert(pa.RecordBatch.from_pydict({name: held[name] for name in columns.needed}))
        assert made.schema == arrow_schema(names, BUCKET_TYPES)
        whole = {
            "key": ["a.b", "$KV.x.y", "c"],
            "value": [b"1", None, None],
            "operation": ["PUT", "DEL", "PURGE"],
            "revision": [4, 6, 7],
            "created": held["time"].to_pylist(),
        }
        assert made.to_pydict() == {name: whole[name] for name in names}
