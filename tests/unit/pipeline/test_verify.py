"""Refusals of `verify` before Spark starts, and verdicts made of findings."""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pytest

from jetcluster.pipeline import verify
from jetcluster.pipeline.result import UsageError

FIGURES = {"a": {"acked": 4, "unknown": 1, "checked": {"queue": 5}, "unread": []},
           "b": {"acked": 3, "unknown": 0, "checked": {"queue": 1, "consumers": 5}, "unread": ["queue"]}}  # fmt: skip


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--server", "nats://x"], "--server and --stream"),
        (["--stream", "S"], "--server and --stream"),
        (["--server", "nats://x", "--stream", "S", "--archive", "d"], "one of them"),
        (["--workload", "queue"], "--workload goes with"),
        (["--archive", "d", "--history", "."], "these are several"),
        (["--out", "."], "is not empty"),
        (["--history", "nowhere"], "no history"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}\n")
    with pytest.raises(UsageError, match=why):
        verify.check(asked("--history", "a.jsonl", *words))


def test_a_folder_is_all_its_histories(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "report.html"):
        (tmp_path / name).write_text("")
    assert [path.name for path in verify.histories(tmp_path)] == ["a.jsonl", "b.jsonl"]
    verify.check(asked("--history", str(tmp_path)))


def test_a_finding_fails_the_check() -> None:
    kept = verify.verdict(FIGURES, {}, [], None)
    broken = verify.verdict(FIGURES, {("a", "stale"): 2, ("b", "lost"): 1}, [], "out")
    assert (kept.code, kept.fields["violations"], kept.fields["kinds"]) == (0, 0, {})
    assert (broken.code, broken.fields["violations"], broken.fields["broken"]) == (1, 3, {"a": 2, "b": 1})
    assert broken.fields["kinds"] == {"lost": 1, "stale": 2}
    assert (broken.fields["out"], broken.fields["acked"], broken.fields["unknown"]) == ("out", 7, 1)


def test_a_workload_of_which_no_copy_was_read_is_named() -> None:
    """Nothing can be lost from what was not looked at."""
    fields = verify.verdict(FIGURES, {}, [], None).fields
    assert fields["unread"] == ["b: queue"]
    assert fields["checked"] == {"queue": 6, "consumers": 5}


def test_lines_are_the_same_after_they_were_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no UTF-8, which is found to be no event."""
    monkeypatch.setattr(verify, "PACKED_BYTES", 50)
    file = tmp_path / "a+b c.jsonl"
    lines = [b'{"op":%d}' % n for n in range(40)]
    file.write_bytes(b"\n".join([*lines, b"\xff"]))
    parts = list(verify.packed_lines(file))
    batch = pa.RecordBatch.from_pydict({"history": ["h"] * len(parts), "packed": parts})
    rows = [row for one in verify.unpacked([batch]) for row in one.to_pylist()]
    assert len(parts) > 5 and {row["history"] for row in rows} == {"h"}
    assert [row["value"] for row in rows] == [*(line.decode() for line in lines), "\ufffd"]
