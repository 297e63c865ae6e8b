"""The client's side of STREAM.RESTORE: it sends an archive in pieces to a server, which makes a stream with the
sequences, times, header blocks and gaps of the archive.

The stream accepts no publish until it is complete; if the client goes away, the server removes it, so an interrupted
restore starts over.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from jetcluster.client.connection import Connection
from jetcluster.client.reply import NoRespondersError, Reply, RequestTimeoutError
from jetcluster.errors import ApiError
from jetcluster.protocol import s2, stream_archive

T = TypeVar("T")

PIECE_BYTES: Final = 128 * 1024
WINDOW_PIECES: Final = 8
"""Pieces in flight without an answer."""
INTEREST_SECONDS: Final = 3.0
SILENCE_SECONDS: Final = 1.0
"""Pause after which padding is sent; the server gives up after five seconds without a piece."""
ANSWER_SECONDS: Final = 60.0
"""Timeout of an answer; of the last one, which arrives when the stream is complete, the pause between two questions
whether the server is still at work."""
MAX_ENDING_SECONDS: Final = 3600.0
"""The longest wait for the last answer."""
NO_RESPONDERS: Final = 503
PADDING: Final = b"\xfe\x00\x00\x00"
"""An S2 chunk that readers skip, sent while no data is ready, so that the server does not give up."""
Consumers = Sequence[tuple[str, bytes]]
"""(name, content of the archive's entry)."""


def head(state: bytes, ts: int, consumers: Consumers = ()) -> bytes:
    """Returns the beginning of an archive; `state` is its state.json."""
    entries = [stream_archive.encode(stream_archive.STATE_NAME, ts, 0, b"", state)]
    for name, content in consumers:
        entries.append(stream_archive.encode(stream_archive.CONSUMER_PREFIX + name.encode(), ts, 0, b"", content))
    return s2.STREAM_ID + framed(stream_archive.MAGIC + b"".join(entries))


def tail() -> bytes:
    return framed(stream_archive.END)


def framed(entries: bytes) -> bytes:
    """Returns encoded entries in the frames of a transfer."""
    return b"".join(s2.encode(entries))


def _nothing() -> None:
    pass


class RestoreTransfer:
    """One restore over one connection."""

    def __init__(self, connection: Connection, config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Starts the restore on the server. Raises ApiError (10130: the name is taken), and as `Connection.api`."""
        self._connection = connection
        self._state = state
        name = config["name"]
        answer = connection.api(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
        self._subject = str(answer["deliver_subject"])

    def send(
        self, blobs: Iterable[bytes], consumers: Consumers = (), check: Callable[[], None] = _nothing
    ) -> dict[str, Any]:
        """Sends the archive, whose messages are `blobs` (`framed`), and returns the answer that describes the stream.
        `check` is called before the end: if it raises, the archive is left incomplete, and the server discards it.
        Raises ApiError, ConnectionLostError, RequestTimeoutError, and what `blobs` and `check` raise."""
        opening = head(json.dumps(self._state).encode(), time.time_ns(), consumers)
        self._begin(opening[:PIECE_BYTES])
        self._put_all(opening[PIECE_BYTES:])
        for blob in with_pauses(blobs, SILENCE_SECONDS):
            if blob is None:
                self._put(PADDING)
                self._answered(0)
            else:
                self._put_all(blob)
        check()
        self._put(tail())
        self._answered(0)
        return self._ended()

    def _ended(self) -> dict[str, Any]:
        """Ends the archive and waits for the answer, which comes when all consumers are made, and there may be
        thousands: so it waits as long as the server listens to the subject. A message to it is not answered then."""
        final = self._connection.publish_acked(self._subject, b"")
        deadline = time.monotonic() + MAX_ENDING_SECONDS
        gone: Reply | None = None
        while True:
            try:
                replies = dict(self._connection.acks(self._connection.outstanding - 1, ANSWER_SECONDS))
            except RequestTimeoutError:
                if gone is not None:
                    return _checked(gone)
                if time.monotonic() > deadline:
                    raise
                self._connection.publish_acked(self._subject, b"")
                continue
            if final in replies:
                return _checked(replies[final])
            gone = next((one for one in replies.values() if one.status == NO_RESPONDERS), gone)
            if gone is not None and self._connection.outstanding == 0:
                return _checked(gone)

    def _begin(self, piece: bytes) -> None:
        """Sends the first piece until it is answered, as the connected server may learn of the subject late."""
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

    def _put_all(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE_BYTES):
            self._put(data[at : at + PIECE_BYTES])

    def _put(self, piece: bytes) -> None:
        self._connection.publish_acked(self._subject, piece)
        if self._connection.outstanding >= WINDOW_PIECES:
            self._answered(WINDOW_PIECES // 2)

    def _answered(self, down_to: int) -> None:
        for _, reply in self._connection.acks(down_to, ANSWER_SECONDS):
            _checked(reply)


def _checked(reply: Reply) -> dict[str, Any]:
    """Returns an answer. Raises ApiError if it is an error."""
    if reply.status:
        raise ApiError(reply.status, 0, reply.description or "the restore is not known to the server any more")
    found: dict[str, Any] = reply.json() if reply.data.startswith(b"{") else {}
    if error := found.get("error"):
        raise ApiError.from_dict(error)
    return found


def with_pauses(items: Iterable[T], seconds: float) -> Iterator[T | None]:
    """Yields the items, read ahead in a thread; None whenever the next one takes longer than `seconds`."""
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
