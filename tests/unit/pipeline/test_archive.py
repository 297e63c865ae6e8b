"""Arguments of an archive, and an archive of more than its stream has."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.pipeline import archive
from jetcluster.pipeline.archive import Archive, pause_of
from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.pipeline.stop import Stop


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 seconds", 10), ("1 minute", 60), ("250ms", 0.25), ("2h", 7200), ("1.5 S", 1.5)]
)
def test_pauses(text: str, seconds: float) -> None:
    assert pause_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "ten seconds", "1 fortnight"])
def test_other_pauses(text: str) -> None:
    with pytest.raises(UsageError, match="--every"):
        pause_of(text)


def test_a_stream_that_was_set_back_is_told_from_a_leader_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next messages have sequences that the archive has of others."""
    args = argparse.Namespace(stream="S", subjects=">", out=str(tmp_path), guard="", max_per_batch=100)
    session: Any = None
    one = Archive(session, args)
    one.end = 101
    added: list[int] = []

    def add(end: int) -> None:
        added.append(end)
        one.end = end

    monkeypatch.setattr(archive, "stream_state_of", lambda *_: SimpleNamespace(last=50))
    monkeypatch.setattr(one, "_add", add)
    monkeypatch.setattr(one, "_proven_last", lambda: 120)
    one.extend(Stop())
    assert added == [121]
    monkeypatch.setattr(one, "_proven_last", lambda: 119)
    with pytest.raises(DataLoss, match="ends at sequence 120, and S at 119: the stream was set back"):
        one.extend(Stop())
