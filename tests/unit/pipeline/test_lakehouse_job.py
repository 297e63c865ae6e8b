"""Rounds of the jobs on streams that change meanwhile, without Spark and without a server."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("pyspark")

from deltalake import DeltaTable

from jetcluster.client.stream_state import StreamState
from jetcluster.pipeline import lakehouse, lakehouse_job, lakehouse_keys
from jetcluster.pipeline.arguments import add_common
from jetcluster.pipeline.lakehouse_keys import RECONCILE_SECONDS, KeyedJob
from jetcluster.pipeline.lakehouse_rows import RowsJob
from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.pipeline.stop import Stop
from jetcluster.pipeline.tables.files import RAW
from jetcluster.pipeline.tables.table import TableIdentity

NOON = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
MOST_LOOKS = 50


class FakeStream:
    """A stream of `last` messages, and Spark's session that reads it. `busy`: messages that come with each look."""

    def __init__(self, last: int, busy: int = 0) -> None:
        self.last, self.created, self.looks, self._busy = last, "2026-11-29T12:00:00Z", 0, busy
        self.after_read: Callable[[], None] = lambda: None
        self.read = self
        self.tags: set[str] = set()
        self.addTag, self.removeTag = self.tags.add, self.tags.remove

    def ask(self, options: Any, question: Any) -> StreamState:
        self.looks += 1
        assert self.looks < MOST_LOOKS, "the job never ends"
        last, self.last = self.last, self.last + self._busy
        return StreamState("S", self.created, 1, last, last, 100 * last, "n1", ("n1",), True, {})

    def delete_and_create(self) -> None:
        self.created = "2026-11-30T12:00:00Z"

    def rows(self, start: int, end: int) -> Any:
        found = [{"seq": seq, "subject": "s", "time": NOON, "data": b"%d" % seq} for seq in range(start, end)]
        return pa.Table.from_pylist(found, schema=RAW)

    def format(self, name: str) -> FakeStream:
        assert name == "jetstream"
        return self

    def options(self, **options: str) -> FakeStream:
        self._span = (json.loads(options[f"{word}Offsets"])["S"]["seq"] for word in ("starting", "ending"))
        return self

    def load(self) -> FakeStream:
        return self

    def mapInArrow(self, task: Any, schema: str) -> FakeStream:
        rows = self.rows(*self._span)
        self._found = [SimpleNamespace(**row) for one in task(rows.to_batches()) for row in one.to_pylist()]
        return self

    def collect(self) -> Any:
        self.after_read()
        return self._found


class FakeKeyed(KeyedJob):
    """A job of a bucket whose keys are the sequences; the driver finds the last messages itself."""

    stream: FakeStream
    absent: list[str]

    def _last(self, span: Any) -> Any:
        rows = self.stream.rows(*span)
        keys, puts = rows["seq"].cast(pa.string()), pa.array(["PUT"] * rows.num_rows)
        self.stream.after_read()
        found = {"key": keys, "op": puts, "value": rows["data"], "revision": rows["seq"]}
        return pa.table(found | {name: rows[name] for name in RAW.names})

    def _absent(self, keys: set[str]) -> list[str]:
        gone = [key for key in self.absent if key in keys]
        self.stream.after_read()
        return gone


class Pauses(Stop):
    """Ends a following job at its pause number `last`."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._last = last

    def within(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) == self._last


def asked(folder: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    lakehouse.add_arguments(parser)
    add_common(parser)
    return parser.parse_args(["--delta", str(folder / "t"), "--json", *words])


def watched(stream: FakeStream, monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    monkeypatch.setattr(lakehouse_job, "ask", stream.ask)
    monkeypatch.setattr(lakehouse, "stream_state_of", stream.ask)
    return stream


def keyed(stream: FakeStream, folder: Path, *absent: str) -> FakeKeyed:
    session: Any = stream
    job = FakeKeyed(session, asked(folder, "--bucket", "S"), stream.ask(None, None))
    job.stream, job.absent = stream, list(absent)
    return job


def landed(folder: Path, name: str = "seq") -> list[Any]:
    return sorted(DeltaTable(str(folder / "t")).to_pyarrow_table()[name].to_pylist())


def test_a_job_on_a_busy_stream_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was there when it looked first; each look finds three messages more, and a batch takes two."""
    stream: Any = watched(FakeStream(4, busy=3), monkeypatch)
    done = lakehouse.run(stream, asked(tmp_path, "--stream", "S", "--max-per-batch", "2")).fields
    assert (done["end"], done["rows"], done["batches"]) == (8, 7, 4)
    assert landed(tmp_path) == [1, 2, 3, 4, 5, 6, 7]


def test_a_following_job_pauses_between_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Any = watched(FakeStream(1, busy=1), monkeypatch)
    pauses = Pauses(3)
    monkeypatch.setattr(lakehouse, "Stop", lambda: pauses)
    done = lakehouse.run(stream, asked(tmp_path, "--stream", "S", "--follow", "--every", "7")).fields
    assert (pauses.seconds, done["batches"]) == ([7.0] * 3, 3)


def test_a_round_ends_when_an_end_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Any = watched(FakeStream(9), monkeypatch)
    job = RowsJob(stream, asked(tmp_path, "--stream", "S", "--max-per-batch", "2"), stream.ask(None, None))
    stream.after_read = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with Stop() as stop:
        job.round(stop)
    assert landed(tmp_path) == [1, 2]


def test_a_busy_bucket_is_compared_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first round, and as often as is said, though no round finds nothing."""
    stream, clock = watched(FakeStream(4, busy=1), monkeypatch), SimpleNamespace(now=0.0)
    monkeypatch.setattr(lakehouse_keys, "time", SimpleNamespace(monotonic=lambda: clock.now))
    job = keyed(stream, tmp_path, "1")
    job.round(Stop())
    assert (job.batches, job.removed) == (1, 1)
    job.absent = ["2", "3"]
    clock.now = RECONCILE_SECONDS - 1
    job.round(Stop())
    assert (job.batches, job.removed) == (2, 1)
    clock.now = RECONCILE_SECONDS
    job.round(Stop())
    assert (job.batches, job.removed) == (3, 3)
    assert not {"1", "2", "3"} & set(landed(tmp_path, "key"))


@pytest.mark.parametrize("allow", [(), ("--allow-loss",)])
def test_rows_of_a_stream_made_anew_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow: tuple[str, ...]
) -> None:
    """It is deleted and created while a batch is read, which tells nothing of it when messages may be missing."""
    stream: Any = watched(FakeStream(4), monkeypatch)
    job = RowsJob(stream, asked(tmp_path, "--stream", "S", *allow), stream.ask(None, None))
    stream.after_read = stream.delete_and_create
    with pytest.raises(DataLoss, match="was created anew at 2026-11-30"):
        job.round(Stop())
    assert landed(tmp_path) == []


def test_a_stream_that_was_set_back_is_told_from_a_leader_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next messages have sequences that the table has."""
    stream: Any = watched(FakeStream(4), monkeypatch)
    job = RowsJob(stream, asked(tmp_path, "--stream", "S"), stream.ask(None, None))
    job.round(Stop())
    behind = 2

    def ask(options: Any, question: Any) -> StreamState:
        found = stream.ask(options, question)
        return found if question.keywords["linearizable"] else found._replace(last=behind)

    monkeypatch.setattr(lakehouse_job, "ask", ask)
    job.round(Stop())
    stream.last = 3
    with pytest.raises(DataLoss, match="S ends at 3, and a table of it at 4: the stream was set back"):
        job.round(Stop())
    assert landed(tmp_path) == [1, 2, 3, 4]


def test_keys_of_a_bucket_made_anew_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = watched(FakeStream(4), monkeypatch)
    job = keyed(stream, tmp_path)
    stream.after_read = stream.delete_and_create
    with pytest.raises(DataLoss, match="was created anew at 2026-11-30"):
        job.round(Stop())
    assert landed(tmp_path, "key") == []


def test_keys_that_a_bucket_made_anew_has_not_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = watched(FakeStream(2), monkeypatch)
    keyed(stream, tmp_path).round(Stop())
    job = keyed(stream, tmp_path, "1", "2")
    stream.after_read = stream.delete_and_create
    with pytest.raises(DataLoss, match="was created anew at 2026-11-30"):
        job.round(Stop())
    assert landed(tmp_path, "key") == ["1", "2"]


MADE = ("--stream S --format raw", "--stream S --format json", "--bucket S --format raw", "--bucket S --format json")


def begin(stream: Any, folder: Path, words: str) -> Any:
    args = asked(folder, *words.split())
    return (KeyedJob if args.bucket else RowsJob)(stream, args, stream.ask(None, None))


@pytest.mark.parametrize("made", MADE)
def test_a_table_of_another_kind_of_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    """Its properties tell; and where somebody changed these, its columns."""
    stream = watched(FakeStream(2), monkeypatch)
    begin(stream, tmp_path, made)
    version = DeltaTable(str(tmp_path / "t")).version()
    for other in {*MADE} - {made}:
        with pytest.raises(UsageError, match="choose another table"):
            begin(stream, tmp_path, other)
        with monkeypatch.context() as changed:
            changed.setattr(TableIdentity, "check", lambda *_: None)
            with pytest.raises(UsageError, match="is of another format"):
                begin(stream, tmp_path, other)
    assert DeltaTable(str(tmp_path / "t")).version() == version
    begin(stream, tmp_path, made)


def test_a_table_keeps_its_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that others would have before the table's end would never land."""
    stream = watched(FakeStream(2), monkeypatch)
    begin(stream, tmp_path, "--stream S --subjects b.*,a.>").round(Stop())
    for words in ("--stream S", "--stream S --subjects a.>"):
        with pytest.raises(UsageError, match=r"made with subjects a.>,b.\*, and this job has .*: choose another table"):
            begin(stream, tmp_path, words)
    begin(stream, tmp_path, "--stream S --subjects a.>,b.*,a.>").round(Stop())
    assert landed(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (pa.field("_SEQ", pa.int64()), "_SEQ cannot be a column: there is one of that name"),
        (pa.field("s", pa.struct([])), "s cannot be a column: it has no fields"),
        (pa.field("at", pa.duration("us")), r"JSON is not parsed to columns of duration\[us\]"),
        (pa.field("n", pa.null()), "JSON is not parsed to columns of null"),
        (pa.field("m", pa.map_(pa.int64(), pa.string())), "JSON is not parsed to columns of map"),
    ],
)
def test_a_schema_that_cannot_be_leaves_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: Any, why: str
) -> None:
    """It would keep the columns, and the schema that was meant would be refused."""
    stream: Any = watched(FakeStream(3), monkeypatch)
    monkeypatch.setattr(lakehouse_job, "declared_columns", lambda ddl: pa.struct([field]))
    args = asked(tmp_path, "--stream", "S", "--format", "json", "--schema", "as above")
    with pytest.raises(UsageError, match=f"--schema: {why}"):
        RowsJob(stream, args, stream.ask(None, None))
    assert list(tmp_path.iterdir()) == []
