"""Writers of log lines in a thread, so that the event loop never waits: to a descriptor, or to a file that rotates.

Names of rotated files (`x.log.2026.11.20.10.01.23.167217000`) and the lines about them are nats-server's, so that tools
for its logs work for ours.
"""

from __future__ import annotations

import collections
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jetcluster.file_modes import open_to_others

MAX_QUEUED_LINES = 8192
MAX_LINE_BYTES = 64 * 1024
FILE_MODE = 0o640
"""The mode of log files, as nats-server makes them."""
_STAMP = re.compile(r"\.\d{4}(\.\d\d){5}\.\d{9}")


def _plain(level: str, text: str) -> str:
    return text


class LineWriter:
    """A thread that writes lines to a file descriptor. `write` never blocks and never raises."""

    def __init__(self, fd: int, path: str = "", limit: int = MAX_QUEUED_LINES) -> None:
        self.fd = fd
        self.path = path
        """Path of the file behind `fd`, for `reopen`; "" for another descriptor."""
        self.dropped = 0
        """Lines lost since the start because the queue was full or the descriptor failed."""
        self.render: Callable[[str, str], str] = _plain
        """("INF", text) -> a line, for the writer's own messages."""
        self._reported = 0
        self._limit = limit
        self._lines: collections.deque[bytes] = collections.deque()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = False
        self._reopen = False
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_closed(self) -> bool:
        return self._stopping

    def write(self, line: str) -> None:
        if len(self._lines) >= self._limit or self._stopping:
            self.dropped += 1
            return
        self._idle.clear()
        self._lines.append(line.encode(errors="replace")[:MAX_LINE_BYTES] + b"\n")
        self._signal()

    def reopen(self) -> bool:
        """Close and open the log file again, after it was moved (SIGUSR1). False without a file."""
        if not self.path:
            return False
        self._idle.clear()
        self._reopen = True
        self._signal()
        return True

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the queue to be written. The thread is a daemon: a pipe without a reader
        cannot keep the process alive."""
        self._idle.wait(timeout)
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        if self._thread is None or not self._thread.is_alive():
            self._close_target()

    def _signal(self) -> None:
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                    self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        lines = self._lines
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._reopen:
                self._reopen = False
                self._open_again()
            while lines:
                batch = [lines.popleft() for _ in range(min(len(lines), 256))]
                self._write_all(batch)
            if self.dropped > self._reported:
                count, self._reported = self.dropped - self._reported, self.dropped
                self._write_all([self._own("WRN", f"{count} log lines were dropped: the log's reader was too slow")])
            if not lines and not self._wake.is_set():
                self._idle.set()
            if self._stopping:
                return

    def _own(self, level: str, text: str) -> bytes:
        return self.render(level, text).encode() + b"\n"

    def _write_all(self, batch: list[bytes]) -> None:
        data = memoryview(b"".join(batch))
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:  # another process made the shared stderr non-blocking
                time.sleep(0.01)
            except OSError:  # reader gone, disk full: it cannot be logged anywhere
                self._lost(len(batch))
                return

    def _lost(self, count: int) -> None:
        self.dropped += count
        self._reported = self.dropped

    def _open_again(self) -> None:
        try:
            fd = open_log_file(self.path)
        except OSError:
            return  # the old file is better than none
        old, self.fd = self.fd, fd
        os.close(old)

    def _close_target(self) -> None:
        if self.path:
            os.close(self.fd)


class FileWriter(LineWriter):
    """A log file. Above `size_limit` bytes it is renamed and a new one begins; the newest `max_files - 1` renamed ones
    stay. 0 turns either limit off; both may change at any time."""

    def __init__(self, path: str, size_limit: int = 0, max_files: int = 0) -> None:
        """Raises OSError when the file cannot be opened."""
        super().__init__(open_log_file(path), path)
        self.size_limit = size_limit
        self.max_files = max_files
        self._size = os.fstat(self.fd).st_size

    def _write_all(self, batch: list[bytes]) -> None:
        """Write as many lines at a time as fit, so that a file is not much longer than the limit."""
        first = 0
        for i, line in enumerate(batch):
            self._size += len(line)
            if 0 < self.size_limit < self._size:
                super()._write_all(batch[first : i + 1])
                first = i + 1
                self._put_aside()
        super()._write_all(batch[first:])

    def _open_again(self) -> None:
        super()._open_again()
        self._size = os.fstat(self.fd).st_size

    def _put_aside(self) -> None:
        backup = f"{self.path}.{_stamp(time.time_ns())}"
        try:
            Path(self.path).rename(backup)
        except OSError as error:
            self._size = 0  # the next attempt follows after another `size_limit` bytes
            self._note("ERR", f"Unable to rotate the log file ({error.strerror}), will attempt next rotation")
            return
        self._open_again()
        self._note("INF", f'Rotated log, backup saved as "{backup}"')
        if self.max_files > 0:
            self._purge()

    def _purge(self) -> None:
        path = Path(self.path)
        try:
            names = [entry.name for entry in os.scandir(path.parent) if entry.name.startswith(path.name)]
            backups = sorted(name for name in names if _STAMP.fullmatch(name[len(path.name) :]))
            for name in backups[: max(len(backups) - (self.max_files - 1), 0)]:
                (path.parent / name).unlink()
                self._note("INF", f'Purged log file "{name}"')
        except OSError as error:
            self._note("ERR", f"Unable to remove old log files ({error.strerror}), will attempt next rotation")

    def _note(self, level: str, text: str) -> None:
        line = self._own(level, text)
        self._size += len(line)
        super()._write_all([line])


def _stamp(now_ns: int) -> str:
    second, nanos = divmod(now_ns, 1_000_000_000)
    return time.strftime("%Y.%m.%d.%H.%M.%S.", time.localtime(second)) + f"{nanos:09d}"


def open_log_file(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        return os.open(path, flags | os.O_CREAT, FILE_MODE)
    open_to_others(fd, FILE_MODE)
    return fd
