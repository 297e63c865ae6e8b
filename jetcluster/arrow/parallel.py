"""`ParallelRead`: the record batches of many tasks in their order, read by several threads at once.

Each thread has a connection of its own, begun at another server, and takes the next task when it has read one. What was
read and not taken yet is bounded: a thread whose batch finds no room waits. The task that the reader is at always finds
room for one batch, so that it goes on whatever the others have read ahead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jetcluster.arrow.link import Link
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import Task
from jetcluster.arrow.read_task import read_task

IDLE_SECONDS: Final = 2.0
"""A thread that finds no room for so long closes its connection: a server would take it for a slow consumer."""


class ParallelRead:
    """One pass over `tasks` with at most `threads` connections, and `buffer_bytes` of batches that nobody has taken."""

    def __init__(
        self, tasks: Sequence[Task], options: SourceOptions, names: Sequence[str], *, threads: int, buffer_bytes: int
    ) -> None:
        self._tasks = tasks
        self._options = options
        self._names = names
        self._room = buffer_bytes
        self._changed = threading.Condition()
        self._next = 0
        """The next task that a thread takes."""
        self._at = 0
        """The task that the reader takes batches of."""
        self._ready: list[deque[Any]] = [deque() for _ in tasks]
        self._ended: dict[int, BaseException | None] = {}
        """Tasks that have been read, with the error that ended one."""
        self._stopped = False
        count = min(threads, len(tasks))
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"jetcluster-arrow-{number}", daemon=True)
            for number in range(count)
        ]

    def __iter__(self) -> Iterator[Any]:
        """Yields record batches. Raises what `read_task` raises, behind all rows before the task that failed."""
        try:
            for thread in self._threads:
                thread.start()
            for at in range(len(self._tasks)):
                while (batch := self._taken(at)) is not None:
                    yield batch
        finally:
            self.stop()

    def stop(self) -> None:
        """Threads end with the answer that they wait for."""
        with self._changed:
            self._stopped = True
            for ready in self._ready:
                ready.clear()
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Returns whether all threads have ended, after `timeout` seconds for each at most."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _taken(self, at: int) -> Any:
        """Returns the next batch of a task; None at its end. Raises its error."""
        ready = self._ready[at]
        with self._changed:
            self._at = at
            self._changed.notify_all()
            self._changed.wait_for(lambda: ready or at in self._ended)
            if ready:
                batch = ready.popleft()
                self._room += batch.nbytes
                return batch
            error = self._ended[at]
        if error is not None:
            raise error
        return None

    def _work(self, number: int) -> None:
        links: dict[str, Link] = {}
        try:
            while (at := self._begun()) is not None:
                task = self._tasks[at]
                link = links.setdefault(task.target.stream, Link(self._options, task.target, number))
                failure: BaseException | None = None
                try:
                    for batch in read_task(task, self._options, self._names, link):
                        if not self._put(at, batch, link):
                            return
                except BaseException as error:  # noqa: BLE001 - the reader raises it
                    failure = error
                with self._changed:
                    self._ended[at] = failure
                    self._changed.notify_all()
        finally:
            for link in links.values():
                link.close()

    def _begun(self) -> int | None:
        """Returns the task to read next; None for none."""
        with self._changed:
            if self._stopped or self._next == len(self._tasks) or any(self._ended.values()):
                return None
            self._next += 1
            return self._next - 1

    def _put(self, at: int, batch: Any, link: Link) -> bool:
        """Waits for room. Returns False when nobody reads any more."""
        size = batch.nbytes

        def fits() -> bool:
            return self._stopped or self._room >= size or (at == self._at and not self._ready[at])

        with self._changed:
            if not self._changed.wait_for(fits, IDLE_SECONDS):
                link.close()
                self._changed.wait_for(fits)
            if self._stopped:
                return False
            self._room -= size
            self._ready[at].append(batch)
            self._changed.notify_all()
            return True
