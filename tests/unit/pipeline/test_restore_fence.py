"""Rounds of tasks that publish an archive in order, each in its turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from jetcluster.pipeline import restore_fence
from jetcluster.pipeline.archive_tasks import FilePart
from jetcluster.pipeline.restore_fence import FencedPart, FencedTask
from jetcluster.spark.fence import FenceError, Last
from jetcluster.spark.message import PublishError

PARTS = [FencedPart(FilePart((), n, n + 10), 10 * n, 10 * n + 10) for n in range(4)]
JOB = "restore.OLD.8cdc1683"


class Tasks:
    """Tasks of Spark: each round stores some rows more."""

    def __init__(self, *rounds: int, stored: int = 0) -> None:
        self.rounds = list(rounds)
        self.stored = stored
        self.asked: list[list[int]] = []

    def run(self, _session: Any, parts: list[FencedPart], _task: Any) -> list[str]:
        self.asked.append([part.first for part in parts])
        self.stored += self.rounds.pop(0)
        return []

    def last(self, *_: Any) -> Last:
        return Last(self.stored, f"{JOB}/0/{self.stored}".encode()) if self.stored else Last(0)


def publish(monkeypatch: pytest.MonkeyPatch, tasks: Tasks, parts: list[FencedPart] = PARTS) -> dict[str, Any]:
    monkeypatch.setattr(restore_fence, "run_tasks", tasks.run)
    monkeypatch.setattr(restore_fence, "ask", tasks.last)
    monkeypatch.setattr(restore_fence, "_sink", lambda *_: None)
    monkeypatch.setattr(restore_fence, "fenced", lambda *_: parts)
    monkeypatch.setattr(restore_fence, "server_options_of", lambda _: None)
    plan: Any = SimpleNamespace(stream="OLD", created="x", target="NEW", url="u")
    args: Any = SimpleNamespace(json=True, source_seq=False)
    session = SimpleNamespace(addTag=lambda tag: None, removeTag=lambda tag: None)
    return restore_fence.publish(session, plan, args)  # type: ignore[arg-type]


def test_what_tasks_left_is_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(15, 0, 5, 20)
    assert publish(monkeypatch, tasks) == {"added": 40}
    assert tasks.asked == [[0, 10, 20, 30], [10, 20, 30], [10, 20, 30], [20, 30]]


def test_a_run_goes_on_where_another_one_was(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(9, stored=31)
    assert publish(monkeypatch, tasks) == {"added": 9}
    assert tasks.asked == [[30]]
    assert publish(monkeypatch, Tasks(stored=40)) == {"added": 0}
    assert publish(monkeypatch, Tasks(), []) == {"added": 0}


def test_rounds_that_store_nothing_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PublishError, match="no task has published anything in 3 rounds"):
        publish(monkeypatch, Tasks(5, 0, 0, 0))


def test_more_rows_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        FenceError, match=r"holds 41 rows of job restore\.OLD\.8cdc1683, and there are only 40 to restore"
    ):
        publish(monkeypatch, Tasks(stored=41))


@pytest.mark.parametrize(("stored", "turn", "added"), [(20, True, ["0"]), (10, True, ["10"]), (5, False, [])])
def test_a_task(stored: int, turn: bool, added: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing when its rows are there, and writes nothing when its turn does not come."""
    did: list[str] = []
    writer = SimpleNamespace(stored=0, rows_stored=lambda: stored)

    def write(rows: list[Any]) -> None:
        did.append("write")
        writer.stored = len(rows)

    writer.await_turn = lambda _seconds: did.append("turn") or turn
    writer.write = write
    sink = SimpleNamespace(options=SimpleNamespace(server=None), fence_writer=lambda *_, **__: writer)
    monkeypatch.setattr(FencedTask, "_rows", lambda *_: did.append("read") or [None] * 10)
    task = FencedTask(sink, "u", "OLD", JOB, False)  # type: ignore[arg-type]
    assert list(task(PARTS[1])) == added
    assert did == {20: [], 10: ["read", "turn", "write"], 5: ["read", "turn"]}[stored]
