"""The job says of every history what a run of the chaos suite says: of clean ones, and of each planted fault."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.checkers import judge
from jetcluster.client.connection import Connection
from jetcluster.pipeline import verify
from jetcluster.pipeline.checkers.event import Event
from jetcluster.pipeline.result import UsageError
from tests.chaos.test_checkers import MIRRORED, PLANTED, clean, ok
from tests.spark.jobs import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

INF = float("inf")


def write(path: Path, events: Iterable[Event]) -> None:
    path.write_text("".join(event.to_json() + "\n" for event in events))


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    args = parser.parse_args(words)
    verify.check(args)
    return args


@pytest.fixture(autouse=True, scope="module")
def source(spark: SparkSession) -> None:
    """`format("jetstream")`, as `open_session` makes it known to a job's session."""
    from jetcluster.spark.datasource import register

    register(spark)


def clean_ones() -> dict[str, list[Event]]:
    """Histories without a broken promise, each for a rule that could be too strict."""
    unknown = replace(ok(900, "queue", "publish", msg_id="u"), type="invoke", t1=INF)
    early = replace(ok(900, "queue", "publish", msg_id="m0", t0=-1.0), type="info", t1=0.0)
    late = ok(900, "consumers", "deliver", seq=3, msg_id="d2", count=1)
    held = Event("ok", 899, "pause", "fault", subject="x", t0=80.0, t1=89.5)
    behind = [e for e in clean() if (e.workload, e.f) != ("mirrors", "drained")
              and (e.workload, e.f, e.seq) != ("mirrors", "stored", 20)]  # fmt: skip
    refused = ok(900, "queue", "publish", msg_id="no")
    return {
        "clean": clean(),
        "an unknown write that is not there": [*clean(), unknown],
        "a write with a try before": [early, *clean()],
        "a late delivery while a process stood still": [*clean(), held, late],
        "a mirror that is behind": behind,
        "a refused write that is not there": [*clean(), replace(refused, type="fail")],
    }


def test_every_history_gets_the_verdict_of_the_checkers(spark: SparkSession, tmp_path: Path) -> None:
    planted = {name: plant(clean()) for name, (plant, _) in {**PLANTED, **MIRRORED}.items()}
    everything = clean_ones() | planted
    for name, events in everything.items():
        write(tmp_path / f"{name}.jsonl", events)
    out = tmp_path / "out"
    result = verify.run(spark, asked("--history", str(tmp_path), "--out", str(out)))
    found: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in everything}
    for row in spark.read.parquet(str(out)).collect():
        found[row.history][row.workload, row.kind] += 1
    for name, events in everything.items():
        assert found[name] == Counter((one.workload, one.kind) for one in judge(events).findings), name
    for name in clean_ones():
        assert not found[name], name
    for name, (_, kind) in {**PLANTED, **MIRRORED}.items():
        assert kind in {found_kind for _, found_kind in found[name]}, name
    verdicts = [judge(events) for events in everything.values()]
    assert result.code == 1
    assert result.fields["histories"] == len(everything)
    assert result.fields["acked"] == sum(verdict.acked for verdict in verdicts)
    assert result.fields["unknown"] == sum(verdict.unknown for verdict in verdicts)
    assert result.fields["checked"] == dict(sum((verdict.checked for verdict in verdicts), Counter()))
    assert set(result.fields["broken"]) == {n for n, events in everything.items() if judge(events).findings}


def test_what_a_stream_holds_counts_instead_of_what_was_noted(
    spark: SparkSession, connection: Connection, tmp_path: Path
) -> None:
    """The stream lacks the last acked message; the archive that is made later has it."""
    queue = [e for e in clean() if e.workload == "queue"]
    connection.api("STREAM.CREATE.QUEUE", {"name": "QUEUE", "subjects": ["q"], "allow_direct": True})
    for n in range(19):
        connection.request("q", b"m%d" % n)
    write(tmp_path / "run.jsonl", queue)
    args = asked("--history", str(tmp_path / "run.jsonl"), "--server", connection.url, "--stream", "QUEUE")
    result = verify.run(spark, args)
    assert (result.code, result.fields["kinds"]) == (1, {"lost": 1})
    (lost,) = result.fields["first"]
    assert (lost["msg_id"], lost["seq"], lost["replica"]) == ("m19", 20, "stream QUEUE")
    connection.request("q", b"m19")
    archive = tmp_path / "archive"
    run(spark, connection.url, "archive", "--stream", "QUEUE", "--out", archive)
    result = verify.run(spark, asked("--history", str(tmp_path / "run.jsonl"), "--archive", str(archive)))
    assert (result.code, result.fields["violations"], result.fields["acked"]) == (0, 0, 20)


def test_a_line_that_is_no_event_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    write(path, clean()[:5])
    for line in (
        '{"type":"ok","op":9,"workl',
        '{"type":"perhaps","op":9,"workload":"queue","f":"publish"}',
        '{"op":9}',
    ):
        path.write_text(path.read_text() + line + "\n")
        with pytest.raises(UsageError, match="torn: no event"):
            verify.run(spark, asked("--history", str(path)))
        write(path, clean()[:5])
