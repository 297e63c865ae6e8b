"""Tables in step with streams: each sequence once, whatever dies and whoever looks."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

from jetcluster import faults
from jetcluster.client.connection import Connection
from tests.spark.jobs import fails, run
from tests.spark.lake import Lake
from tests.spark.stored import delete
from tests.spark.streams import create, fill

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]


def order(n: int, **more: Any) -> bytes:
    return json.dumps({"id": n, "price": n / 4, "buyer": {"name": f"b{n % 5}"}} | more).encode()


def orders(name: str, count: int, first: int = 1) -> list[Any]:
    return [(f"{name.lower()}.{n % 3}", order(n)) for n in range(first, first + count)]


def test_messages_as_they_are(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "LAKERAW")
    fill(connection, [(f"lakeraw.{n % 3}", b"\x00\xff%d" % n, b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n") for n in range(300)])
    delete(connection, "LAKERAW", [2, 300])
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKERAW", *lake.words, "--max-per-batch", "100"]
    done = run(spark, servers, "lakehouse", *words).fields
    assert (done["rows"], done["batches"], done["start"], done["end"]) == (298, 3, 1, 301)
    expected = [(n + 1, f"lakeraw.{n % 3}", b"\x00\xff%d" % n) for n in range(300) if n not in (1, 299)]
    assert lake.rows("seq", "subject", "data") == expected
    again = run(spark, servers, "lakehouse", *words).fields
    assert (again["rows"], again["batches"], again["end"]) == (0, 0, 301)


def test_the_commit_says_how_far_the_table_goes(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "LAKERANGE")
    fill(connection, orders("LAKERANGE", 50))
    lake = Lake(tmp_path / "lake")
    run(spark, servers, "lakehouse", "--stream", "LAKERANGE", *lake.words, "--max-per-batch", "20")
    log = lake.delta_log()
    assert [one["txn"]["version"] for one in log if "txn" in one] == [20, 40, 50]
    ranges = [one["commitInfo"] for one in log if "jetcluster.first-seq" in one.get("commitInfo", {})]
    assert [(one["jetcluster.first-seq"], one["jetcluster.last-seq"]) for one in ranges] == [
        ("1", "20"),
        ("21", "40"),
        ("41", "50"),
    ]
    metadata = lake.iceberg_metadata()
    assert [one["summary"]["jetcluster.last-seq"] for one in metadata["snapshots"]] == ["20", "40", "50"]
    assert metadata["properties"]["jetcluster.last-seq"] == "50"


def test_new_fields_become_columns_and_what_does_not_parse_a_dead_letter(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "LAKEJSON")
    fill(connection, orders("LAKEJSON", 40))
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKEJSON", *lake.words, "--format", "json"]
    assert run(spark, servers, "lakehouse", *words).fields["rows"] == 40
    fill(connection, [("lakejson.1", payload) for payload in (b"{", b'{"id": "x"}', b"\xff", b"[1]")])
    fill(connection, [("lakejson.1", order(45, buyer={"name": "b", "city": "Bern"}, tags=["a"]))])
    fill(connection, orders("LAKEJSON", 5, 46))
    done = run(spark, servers, "lakehouse", *words).fields
    assert (done["rows"], done["dead_letters"]) == (6, 4)
    good = [n for n in range(1, 51) if n not in (41, 42, 43, 44)]
    assert lake.rows("_seq", "id", "price") == [(n, n, n / 4) for n in good]
    assert [row for row in lake.rows("_seq", "tags", "buyer") if row[1]] == [(45, ["a"], {"name": "b", "city": "Bern"})]
    letters = lake.rows("seq", "data", "why", dead=True)
    assert [(seq, data) for seq, data, _ in letters] == [(41, b"{"), (42, b'{"id": "x"}'), (43, b"\xff"), (44, b"[1]")]
    assert [why.partition(":")[0] for _, _, why in letters] == [
        "it is not JSON", "id", "it is not UTF-8", "it is an array, not an object",
    ]  # fmt: skip


def test_declared_columns(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "LAKEDDL")
    rows = [
        order(1, at="2026-11-29T10:00:00.5+01:00", amount="1.50"),
        order(2, at="soon"),
        order(3, amount=2),
        b'{"amount": 1}',
    ]
    fill(connection, [("lakeddl.1", row) for row in rows])
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKEDDL", *lake.words, "--format", "json", "--schema"]
    done = run(spark, servers, "lakehouse", *words, "id BIGINT NOT NULL, at TIMESTAMP, amount DECIMAL(9, 2)").fields
    assert (done["rows"], done["dead_letters"]) == (2, 2)
    found = lake.rows("_seq", "id", "at", "amount")
    assert [(seq, ident, at and at.isoformat()[:21], str(amount)) for seq, ident, at, amount in found] == [
        (1, 1, "2026-11-29T09:00:00.5", "1.50"),
        (3, 3, None, "2.00"),
    ]
    assert lake.rows("seq", "why", dead=True) == [
        (2, 'at: "soon" is not a time as in RFC 3339'),
        (4, "id: it is required"),
    ]
    fill(connection, [("lakeddl.1", order(4))])
    run(spark, servers, "lakehouse", *words, "id BIGINT, price DOUBLE")
    assert lake.rows("_seq", "price")[-1] == (5, 1.0)
    text, code = fails(spark, servers, "lakehouse", *words, "id STRING")
    assert (code, "column id is" in text) == (2, True), text
    other = Lake(tmp_path / "other")
    words = ["--stream", "LAKEDDL", *other.words, "--format", "json", "--schema"]
    for schema in (
        "v VARIANT",
        "a ARRAY<VARIANT>",
        "a VARCHAR(3)",
        "a INTERVAL DAY",
        "_seq BIGINT",
        "a INT, A INT",
        "a VOID",
    ):
        text, code = fails(spark, servers, "lakehouse", *words, schema)
        assert (code, text.startswith("--schema: ")) == (2, True), (schema, text)
    assert not list(other.folder.iterdir())


@pytest.mark.parametrize(
    ("point", "hit"), [("written", 1), ("written", 2), *[("committed", number) for number in range(1, 9)]]
)
def test_a_crash_between_any_two_writes(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, point: str, hit: int
) -> None:
    """After the files and before a commit, and after each commit: of dead letters and rows, in Delta and Iceberg."""
    name = f"LAKE{point}{hit}".upper()
    create(connection, name)
    fill(connection, [*orders(name, 60), (f"{name.lower()}.1", b"no"), *orders(name, 39, 62)])
    lake = Lake(tmp_path / "lake")
    words = ["--stream", name, *lake.words, "--format", "json", "--max-per-batch", "55"]
    with faults.armed(f"lakehouse.{point}", faults.hits(faults.fail(errno.EIO), hit, 1)):
        text, code = fails(spark, servers, "lakehouse", *words)
    assert ("Input/output error" in text, code) == (True, 1), text
    fill(connection, orders(name, 20, 101))
    done = run(spark, servers, "lakehouse", *words).fields
    assert done["end"] == 121
    assert lake.rows("_seq", "id") == [(n, n) for n in range(1, 121) if n != 61]
    assert lake.rows("seq", "data", dead=True) == [(61, b"no")]


def test_a_table_is_of_one_stream(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    for name in ("LAKEONE", "LAKETWO"):
        create(connection, name)
        fill(connection, orders(name, 10))
    lake = Lake(tmp_path / "lake")
    run(spark, servers, "lakehouse", "--stream", "LAKEONE", *lake.words)
    text, code = fails(spark, servers, "lakehouse", "--stream", "LAKETWO", *lake.words)
    assert (code, "one table, one stream" in text) == (2, True), text
    connection.api("STREAM.DELETE.LAKEONE")
    create(connection, "LAKEONE")
    fill(connection, orders("LAKEONE", 20))
    text, code = fails(spark, servers, "lakehouse", "--stream", "LAKEONE", *lake.words)
    assert (code, "choose another table" in text) == (4, True), text
    assert len(lake.rows("seq")) == 10


def test_what_was_removed_before_it_landed_is_reported(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "LAKELOSS")
    fill(connection, orders("LAKELOSS", 20))
    lake = Lake(tmp_path / "lake")
    words = ["--stream", "LAKELOSS", *lake.words]
    run(spark, servers, "lakehouse", *words)
    fill(connection, orders("LAKELOSS", 20, 21))
    connection.api("STREAM.PURGE.LAKELOSS", {"seq": 31})
    text, code = fails(spark, servers, "lakehouse", *words)
    assert code == 4, text
    run(spark, servers, "lakehouse", *words, "--allow-loss")
    assert [row[0] for row in lake.rows("seq")] == [*range(1, 21), *range(31, 41)]
