"""The pure parts of `snapshot`: the moment that is meant, and the number of messages up to it that are still stored."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.client.stream_state import StreamState
from jetcluster.pipeline import snapshot
from jetcluster.pipeline.result import UsageError

STATE = StreamState("KV_B", "2026", 5, 90, 80, 800, "n1", ("n1",), True, {})


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    snapshot.add_arguments(parser)
    return parser.parse_args(["--bucket", "B", "--out", "new", *words])


def test_a_revision_is_one_that_there_was() -> None:
    assert snapshot.moment(asked(), STATE) == 90
    assert snapshot.moment(asked("--as-of-seq", "3"), STATE) == 3
    for seq in ("0", "91"):
        with pytest.raises(UsageError, match="revisions 1 to 90"):
            snapshot.moment(asked("--as-of-seq", seq), STATE)
    with pytest.raises(UsageError, match="asOfTime is a time"):
        snapshot.moment(asked("--as-of-time", "yesterday"), STATE)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "x").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not empty"):
        snapshot.check(asked())


def test_messages_behind_a_sequence() -> None:
    assert snapshot.behind_of(404, {}) == 0
    assert snapshot.behind_of(204, {"Nats-Num-Pending": "4"}) == 5
    assert snapshot.behind_of(503, {}) is None


def counted(extents: list[tuple[int, int]], behind: list[int | None]) -> int | None:
    first: Iterator[tuple[int, int]] = iter(extents)
    second: Iterator[int | None] = iter(behind)
    return snapshot.stored_up_to(lambda: next(first), lambda: next(second))


def test_what_is_stored_is_counted_while_nothing_changes() -> None:
    assert counted([(80, 90)] * 2, [30]) == 50
    assert counted([(80, 90), (81, 91), (81, 91)], [30, 31]) == 50
    assert counted([(80, 90), (79, 90), (79, 90)], [30, 30]) == 49  # one was removed meanwhile
    assert counted([(80, 90)] * 3, [None, 30]) == 50  # a replica that lags was asked first


def test_nothing_is_claimed_of_a_stream_that_never_stands_still() -> None:
    assert counted([(80 + n, 90 + n) for n in range(30)], [5] * 30) is None
