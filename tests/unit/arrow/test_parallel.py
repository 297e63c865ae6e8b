"""Tasks read by several threads: in order, within their room, and with every error (arrow/parallel.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[arrow]'")

import pyarrow as pa

from jetcluster.arrow import parallel
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.parallel import ParallelRead
from jetcluster.arrow.planner import DataLossError, RangeTask, Target
from jetcluster.client.servers import ServerOptions

OPTIONS = SourceOptions(ServerOptions(("nats://127.0.0.1:1",)), ("S",))
BATCHES = 5
ROWS = 10


class Tasks:
    """Stands for `read_task`: a task is BATCHES batches of ROWS numbers of 8 bytes."""

    def __init__(self, count: int, failing: int = -1) -> None:
        target = Target("S", "S", "c", "n1", ("n1",))
        self.tasks = [RangeTask(target, at, at + 1, at) for at in range(count)]
        self.failing = failing
        self.threads: set[str] = set()
        self.made = 0
        self.blocked = threading.Event()
        """Task 0 waits for it."""
        self.blocked.set()
        self.closed = 0

    def read_task(self, task: RangeTask, options: object, names: object, link: Any) -> Iterator[Any]:
        link.close = self.close
        if task.index == 0:
            assert self.blocked.wait(20)
        for at in range(BATCHES):
            if task.index == self.failing and at == 2:
                raise DataLossError(f"S: task {task.index} is gone")
            self.threads.add(threading.current_thread().name)
            self.made += 1
            first = (task.index * BATCHES + at) * ROWS
            yield pa.RecordBatch.from_pydict({"seq": list(range(first, first + ROWS))})

    def close(self) -> None:
        self.closed += 1


def reading(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, threads: int = 3, buffer_bytes: int = 1 << 20
) -> ParallelRead:
    monkeypatch.setattr(parallel, "read_task", tasks.read_task)
    return ParallelRead(tasks.tasks, OPTIONS, ["seq"], threads=threads, buffer_bytes=buffer_bytes)


def values(batches: Iterator[Any]) -> list[int]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("buffer_bytes", [0, ROWS * 8, 1 << 20])
def test_rows_come_in_order_whatever_the_threads_do(buffer_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(20)
    read = reading(tasks, monkeypatch, buffer_bytes=buffer_bytes)
    assert values(iter(read)) == list(range(20 * BATCHES * ROWS))
    assert read.join(20)


def test_several_threads_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task 0 waits until the others have been read by somebody else."""
    tasks = Tasks(4)
    tasks.blocked.clear()
    read = reading(tasks, monkeypatch)
    batches = iter(read)
    timer = threading.Timer(0.0, lambda: _until(lambda: tasks.made == 3 * BATCHES) and tasks.blocked.set())
    timer.start()
    assert values(batches) == list(range(4 * BATCHES * ROWS))
    timer.join()
    assert len(tasks.threads) > 1 and read.join(20)


def test_what_nobody_takes_is_bounded_and_connections_do_not_wait_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "IDLE_SECONDS", 0.05)
    room = 3
    tasks = Tasks(30)
    read = reading(tasks, monkeypatch, buffer_bytes=room * ROWS * 8)
    batches = iter(read)
    next(batches)
    assert _until(lambda: tasks.closed >= 3), "each thread that waits has closed its connection"
    assert tasks.made <= 1 + room + 1 + 3, "what was taken, what has room, one more of the first task, one in each hand"
    assert values(batches) == list(range(ROWS, 30 * BATCHES * ROWS))
    assert read.join(20)


def test_an_error_comes_behind_the_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reading(Tasks(9, failing=4), monkeypatch)
    found = []
    with pytest.raises(DataLossError, match="S: task 4 is gone"):
        for batch in read:
            found += batch.column(0).to_pylist()
    assert found == list(range((4 * BATCHES + 2) * ROWS))
    assert read.join(20)


def test_threads_end_when_the_reader_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reading(Tasks(50), monkeypatch, buffer_bytes=ROWS * 8)
    reader = pa.RecordBatchReader.from_batches(pa.schema([("seq", pa.int64())]), iter(read))
    assert reader.read_next_batch().num_rows == ROWS
    del reader
    assert read.join(20)


def test_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(reading(Tasks(0), monkeypatch)) == []


def _until(true: Any, seconds: float = 20.0) -> bool:
    ended = threading.Event()
    for _ in range(int(seconds * 100)):
        if true():
            return True
        ended.wait(0.01)
    return False
