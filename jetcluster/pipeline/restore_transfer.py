"""STREAM.RESTORE as a client: an archive in pieces to a server, which makes a stream of it, all or nothing.

The stream gets the sequences, times, header blocks and gaps of the archive. While it is made it takes no publishes; if
we go away the server removes it again. So a restore that was interrupted is begun anew (docs/pipeline.md).
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from jetcluster.errors import ApiError, JetclusterError
from jetcluster.pipeline import restore_rows
from jetcluster.pipeline.restore_rows import PADDING, RowTotals
from jetcluster.spark.connection import Connection
from jetcluster.spark.reply import NoRespondersError, Reply

T = TypeVar("T")

PIECE_BYTES: Final = 128 * 1024
WINDOW: Final = 8
"""Pieces without an answer."""
INTEREST_SECONDS: Final = 3.0
SILENCE_SECONDS: Final = 1.0
"""The server gives up after five without a piece."""
ANSWER_SECONDS: Final = 60.0
"""The last answer comes when the stream stands."""


class NotTheArchiveError(JetclusterError):
    """The rows that were read differ from those of the manifests."""


class RestoreTransfer:
    """One restore over one connection."""

    def __init__(self, connection: Connection, config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Makes the server begin. Raises ApiError (10130: the name is taken), and what `Connection.api` raises."""
        self._connection = connection
        self._state = state
        name = config["name"]
        answer = connection.api(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
        self._subject = str(answer["deliver_subject"])
        self.totals = RowTotals()

    def send(self, blobs: Iterable[tuple[bytes, RowTotals]], expected: Callable[[RowTotals], str]) -> dict[str, Any]:
        """Sends all of it; the answer that describes the stream. `expected` says what is wrong with the totals, ""
        for nothing: then the archive is not completed, and the server forgets it. Raises ApiError,
        NotTheArchiveError, ConnectionLostError, RequestTimeoutError, and what `blobs` raises."""
        self._begin(restore_rows.head(json.dumps(self._state).encode(), time.time_ns()))
        for found in with_pauses(blobs, SILENCE_SECONDS):
            if found is None:
                self._put(PADDING)
                self._answered(0)
                continue
            blob, totals = found
            self.totals = self.totals.plus(totals)
            for at in range(0, len(blob), PIECE_BYTES):
                self._put(blob[at : at + PIECE_BYTES])
        if wrong := expected(self.totals):
            raise NotTheArchiveError(wrong)
        self._put(restore_rows.tail())
        self._answered(0)
        return _checked(self._connection.request(self._subject, b"", timeout=ANSWER_SECONDS))

    def _begin(self, piece: bytes) -> None:
        """The server we are connected to may hear of the subject later than we do."""
        deadline = time.monotonic() + INTEREST_SECONDS
        while True:
            try:
                _checked(self._connection.request(self._subject, piece, timeout=ANSWER_SECONDS))
            except NoRespondersError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def _put(self, piece: bytes) -> None:
        self._connection.publish_acked(self._subject, piece)
        if self._connection.outstanding >= WINDOW:
            self._answered(WINDOW // 2)

    def _answered(self, down_to: int) -> None:
        for _, reply in self._connection.acks(down_to, ANSWER_SECONDS):
            _checked(reply)


def _checked(reply: Reply) -> dict[str, Any]:
    """An answer that is no error. Raises ApiError."""
    if reply.status:
        raise ApiError(reply.status, 0, reply.description or "the restore is not known to the server any more")
    found: dict[str, Any] = reply.json() if reply.data.startswith(b"{") else {}
    if error := found.get("error"):
        raise ApiError.from_dict(error)
    return found


def with_pauses(items: Iterable[T], seconds: float) -> Iterator[T | None]:
    """The items, read ahead in a thread; None whenever the next one takes longer than `seconds`."""
    ready: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(maxsize=8)
    stopped = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(entry, timeout=0.1)
                return

    def read() -> None:
        try:
            for item in items:
                put((item, None, False))
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the items are taken
            put((None, error, True))
        else:
            put((None, None, True))

    thread = threading.Thread(target=read, name="restore-read", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error, ended = ready.get(timeout=seconds)
            except queue.Empty:
                yield None
                continue
            if error is not None:
                raise error
            if ended:
                return
            yield item
    finally:
        stopped.set()
        thread.join(10)
