"""A bucket as of any moment against a dict that went through the same writes."""

from __future__ import annotations

import argparse
import json
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.arrow import listing
from jetcluster.client.connection import Connection
from jetcluster.pipeline import snapshot
from tests.spark.streams import create, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from testkit.harness import ProcessCluster

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

State = dict[str, tuple[str, int, bytes]]
"""Key -> (state, revision, value)."""
MARKS = {"DEL": {"KV-Operation": "DEL"}, "PURGE": {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}}


def bucket(connection: Connection, name: str, history: int) -> None:
    create(
        connection, f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=history, allow_rollup_hdrs=True,
        deny_delete=True,
    )  # fmt: skip


def asked(cluster: ProcessCluster, name: str, out: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    snapshot.add_arguments(parser)
    args = parser.parse_args(["--bucket", name, "--server", ",".join(cluster.urls), "--out", str(out), *words])
    snapshot.check(args)
    return args


def rows_of(spark: SparkSession, out: Path) -> dict[str, Any]:
    rows = spark.read.parquet(str(out)).collect()
    assert len({row.key for row in rows}) == len(rows)
    return {row.key: row for row in rows}


class Model:
    """Model of a bucket: its entries now, and those after each write."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.now: State = {}
        self.past: list[State] = [{}]
        self.stored: dict[str, list[int]] = {}

    def write(self, key: str, op: str, value: bytes) -> None:
        seq = len(self.past)
        self.now = {**self.now, key: ("present" if op == "PUT" else "deleted", seq, value if op == "PUT" else b"")}
        self.past.append(self.now)
        kept = [] if op == "PURGE" else self.stored.get(key, [])
        self.stored[key] = [*kept, seq][-self.history :]

    def at(self, seq: int) -> State:
        """With the keys whose revision of then is no longer stored as indeterminate, and all that came later, too,
        as soon as anything up to then is gone."""
        gone = seq - sum(one <= seq for kept in self.stored.values() for one in kept)
        found: State = {}
        for key, kept in self.stored.items():
            held = self.past[seq].get(key)
            if held is not None and held[1] in kept:
                found[key] = held
            elif gone:
                found[key] = ("indeterminate", 0, b"")
        return found


def test_random_writes_at_many_moments(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Once with more keys than the driver lists itself."""
    dice = random.Random(6)
    for history, moments in ((1, (150, 300)), (4, (2, 150, 299))):
        monkeypatch.setattr(listing, "MAX_NAMED", 10 if history == 4 else 100_000)
        name, model = f"MODEL{history}", Model(history)
        bucket(connection, name, history)
        for n in range(300):
            key, op = f"k.{dice.randrange(40)}", dice.choices(["PUT", "DEL", "PURGE"], [8, 1, 1])[0]
            value = b"%d" % n if op == "PUT" else b""
            model.write(key, op, value)
            fill(connection, [(f"$KV.{name}.{key}", value, MARKS.get(op, {}))])
        for seq in moments:
            out = tmp_path / f"{name}-{seq}"
            args = asked(cluster, name, out, "--as-of-seq", str(seq), "--with-deleted")
            fields = snapshot.run(spark, args).fields
            found = {key: (row.state, row.revision or 0, bytes(row.value or b"")) for key, row in
                     rows_of(spark, out).items()}  # fmt: skip
            expected = model.at(seq)
            assert found == expected, (history, seq)
            for state in ("present", "deleted", "indeterminate"):
                assert fields[state] == sum(held[0] == state for held in expected.values())
            assert fields["complete"] == (fields["removed"] == 0)


@pytest.mark.parametrize("named", [True, False])
def test_many_keys_while_others_are_written(
    spark: SparkSession, cluster: ProcessCluster, connection: Connection, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, *, named: bool,
) -> None:  # fmt: skip
    """More keys than one request may name, also more than the driver holds; as of a time; JSON lines; what comes later
    is not there."""
    if not named:
        monkeypatch.setattr(listing, "MAX_NAMED", 100)
        monkeypatch.setattr(listing, "RANGE_SUBJECTS", 600)
    bucket(connection, "MANY", 3)
    fill(connection, [(f"$KV.MANY.k.{n}", b"v%d" % n) for n in range(1500)])
    fill(connection, [("$KV.MANY.k.7", b"", MARKS["DEL"]), ("$KV.MANY.bytes", b"\xff\x00")])
    state = connection.api("STREAM.INFO.KV_MANY")["state"]
    stop = threading.Event()

    def write() -> None:
        with Connection(cluster.urls) as mine:
            n = 0
            while not stop.is_set() and n < 3000:
                fill(mine, [(f"$KV.MANY.new.{n + i}", b"later") for i in range(20)])
                n += 20
                stop.wait(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        out = tmp_path / "many"
        args = asked(cluster, "MANY", out, "--as-of-time", state["last_ts"], "--format", "jsonl")
        fields = snapshot.run(spark, args).fields
    finally:
        stop.set()
        writer.join()
        connection.api("STREAM.DELETE.KV_MANY")
    lines = [json.loads(line) for path in sorted(out.glob("*.json")) for line in path.read_text().splitlines()]
    there = {line["key"]: line for line in lines if line["state"] == "present"}
    assert (fields["seq"], fields["present"], fields["deleted"]) == (1502, 1500, 1)
    assert {key: line["value"] for key, line in there.items() if key != "bytes"} == {
        f"k.{n}": f"v{n}" for n in range(1500) if n != 7
    }
    assert (there["bytes"]["value_base64"], there["k.9"]["revision"], there["k.9"]["op"]) == ("/wA=", 10, "PUT")
    assert all(line["key"].startswith("new.") for line in lines if line["state"] == "indeterminate")
    assert all("value" not in line for line in lines if line["state"] == "indeterminate")
