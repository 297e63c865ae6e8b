"""Publishing of many rows with acks in flight, over the first server of the list that answers.

Rows go out in parts, each as one piece of rendered lines (`render`). A part is done when all its acks have arrived,
which share a reply subject and are counted, not looked at. An atomic batch has one ack: it is stored whole or not at
all. After a lost connection, a change of leader (503) or a timeout, every part without its acks is sent again, in the
original order. With message ids that stores no duplicate as long as the stream remembers them; without them it may.

Ids of atomic batches: a full one, where no more row fits in, has ids for its ends only, `<row>` and `<row>+` of its
first row. The rest at the end of a task, which may be the beginning of a full batch when those who make the rows have
died, has an id for each row. Both begin with the same id, and a row goes out by itself only when that one is known. So
of each cut there is in the stream either the full batch, which `<row>+` tells, or rows that all have their own ids.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jetcluster.client.connection import Connection, Gather
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError, make_reply
from jetcluster.client.servers import ServerOptions
from jetcluster.spark.message import PubAck, PublishError, read_ack
from jetcluster.spark.render import Cutter, Rows, constant, digits, joined, numbers_from_one, render

MAX_BATCH_BYTES: Final = 4 << 20
"""Bytes of subjects, headers and payloads: the server's log cuts a larger batch into parts."""
MAX_TOGETHER: Final = 1000
MAX_TOGETHER_BYTES: Final = 1 << 20
"""Limits of rows that are sent, and sent again, together."""
NO_SEQUENCE: Final = (1 << 63) - 1
"""A sequence that no stream ends with."""
WRONG_SEQUENCE: Final = 10071
NOT_COMPLETE: Final = 10176
DUPLICATE_ID: Final = 10201
ACK_SECONDS: Final = 5.0
"""After this time without any answer the server counts as dead, and another one is used."""
FIRST_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 1.0
MAX_UNACKED_BYTES: Final = 16 << 20


class ServerLink:
    """A connection to one of the servers, opened on use; after `lost`, the next use opens one to the next server."""

    def __init__(self, server: ServerOptions, first: int = 0) -> None:
        """`first` is the index of the server to begin with."""
        self._server = server
        self._next = first
        self._connection: Connection | None = None
        self._others: tuple[str, ...] = ()
        """Servers learnt from `connect_urls`."""

    @property
    def connection(self) -> Connection:
        """Raises what `Connection` raises."""
        if self._connection is None:
            self._connection = self._server.connect(self._next, self._others)
            scheme = "tls" if self._connection.url.startswith("tls") else "nats"
            told = self._connection.info.get("connect_urls") or ()
            self._others = tuple(f"{scheme}://{address}" for address in told)
        return self._connection

    def lost(self) -> None:
        """Closes the connection; the next one is to the next server."""
        self._next += 1
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Patience:
    """A time limit for retries: `pause` sleeps a little longer each time and raises when the time is over. The time
    begins with the first failure, not before, as the next row may take long to arrive."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self.rest()

    def rest(self) -> None:
        """Resets the limit after a success."""
        self._deadline: float | None = None
        self._next = FIRST_PAUSE_SECONDS

    def pause(self, why: object) -> None:
        """Sleeps before the next attempt. Raises PublishError when the time is over."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now + self._next > self._deadline:
            raise PublishError(f"{self._what}: no success for {self._seconds:g} s: {why}")
        time.sleep(self._next)
        self._next = min(self._next * 2, MAX_PAUSE_SECONDS)


@dataclass
class _Part:
    """Rows that were sent together."""

    rows: Rows
    first: int
    """Number of the first row among those of the task."""
    size: int
    at: float
    """When it was first sent, monotonic seconds."""
    whole: bool
    """It goes out as an atomic batch."""
    full: bool
    """Its cut depends on the rows alone, not on where they ended."""
    answers: Gather | None = None
    asking: bool = False
    """Each row of the batch asks for an answer: a commit that is refused does not say which row was."""

    @property
    def wanted(self) -> int:
        """Answers that are to come."""
        return 1 if self.whole and not self.asking else self.rows.count


class WindowedPublisher:
    """Publishes to one stream with up to `window` rows without an ack. Not thread-safe."""

    def __init__(
        self,
        link: ServerLink,
        stream: str,
        *,
        window: int,
        retry_seconds: float,
        ids: bytes | None = None,
        atomic_batch: int = 1,
        safe_seconds: float | None = None,
    ) -> None:
        """`ids`: beginning of the ids of rows that have none; None: no ids. `atomic_batch`: rows that are stored whole
        or not at all; those with ids of their own go by themselves. Rows may be sent again within `safe_seconds`, until
        the stream may forget their ids; None: always."""
        self.stored = 0
        self.duplicates = 0
        self.sent_again = 0
        self.last_seq = 0
        self._link = link
        self._stream = stream
        self._with_ids = ids is not None
        self._prefix = ids or b""
        self._window = window
        whole = ids is not None and atomic_batch > 1
        self._cutter = Cutter(atomic_batch, MAX_BATCH_BYTES) if whole else None
        self._safe_seconds = safe_seconds
        self._patience = Patience(retry_seconds, f"publishing to {stream}")
        self._number = 0
        """Rows so far."""
        self._pending: deque[_Part] = deque()
        self._unacked = 0
        self._unacked_bytes = 0
        self._plain_ack = b'{"stream":"%b","seq":' % stream.encode()

    def publish(self, rows: Rows) -> None:
        """Raises PublishError, ServerError."""
        if self._cutter is not None:
            for part in self._cutter.add(rows):
                self._put(part, whole=_goes_whole(part))
        else:
            for part in Cutter(min(MAX_TOGETHER, max(self._window // 4, 1)), MAX_TOGETHER_BYTES).cut(rows):
                self._put(part)

    def settle(self) -> None:
        """Returns when all that was sent has its acks. Raises as `publish`."""
        while self._pending:
            self._collect()

    def finish(self) -> None:
        """Sends what waits for more rows, and returns when all has its acks. Raises as `publish`."""
        if self._cutter is not None:
            for part in self._cutter.rest():  # rows also end here when those who make them have died
                self._put(part, whole=_goes_whole(part), full=False)
        self.settle()

    def _put(self, rows: Rows, *, whole: bool = False, full: bool = True) -> None:
        size = rows.bytes_of()
        while self._pending and (
            self._unacked + rows.count > self._window or self._unacked_bytes + size > MAX_UNACKED_BYTES
        ):
            self._collect()
        part = _Part(rows, self._number, size, time.monotonic(), whole, full)
        self._number += rows.count
        self._pending.append(part)
        self._unacked += rows.count
        self._unacked_bytes += size
        try:
            self._send(part)
        except ConnectionLostError as error:
            self._link.lost()
            self._recover(error)

    def _send(self, part: _Part) -> None:
        connection = self._link.connection
        part.answers = answers = connection.expect(ACK_SECONDS)
        rows, limit = part.rows, connection.max_payload
        if not part.whole:
            connection.write_frames(render(rows, answers.subject, limit, self._id_lines(part)))
            return
        if part.full:
            first = b"Nats-Msg-Id: %b%d\r\n" % (self._prefix, part.first)
            lines = batch_lines(rows.count, first, b"Nats-Msg-Id: %b\r\n" % self._full_id(part))
        else:
            lines = joined(batch_lines(rows.count, b"", b""), self._id_lines(part))
        connection.write_frames(batch_frames(rows, answers.subject, limit, lines, ask=part.asking))

    def _full_id(self, part: _Part) -> bytes:
        """Returns the id of the last row of a full batch. It does not say how many rows those are, so the rest of an
        attempt that ended early finds it, too."""
        return b"%b%d+" % (self._prefix, part.first)

    def _id_lines(self, part: _Part) -> Any:
        if not self._with_ids:
            return None
        count, ids = part.rows.count, part.rows.ids
        made = joined(self._prefix, digits(pa.array(range(part.first, part.first + count), pa.int64())))
        if ids is None:
            return joined(b"Nats-Msg-Id: ", made, b"\r\n")
        lines = joined(b"Nats-Msg-Id: ", pc.if_else(pc.equal(ids, constant(b"")), made, ids), b"\r\n")
        return pc.fill_null(lines, b"")

    # ---- answers

    def _collect(self) -> None:
        """Waits for the answers of the oldest part. After a failure it sends all parts without their acks again."""
        try:
            trouble = self._take(self._pending[0])
            if trouble:  # take the others first: what is sent again must not overtake theirs a second time
                for part in list(self._pending)[1:]:
                    self._take(part)
        except (ConnectionLostError, RequestTimeoutError) as error:
            trouble = str(error)
            self._link.lost()
        if trouble:
            self._recover(trouble)

    def _take(self, part: _Part) -> str:
        """Waits for a part's answers. Settles it, or returns why it must be sent again. Raises PublishError for what
        does not pass, ConnectionLostError, RequestTimeoutError."""
        answers = part.answers
        assert answers is not None
        while len(answers.payloads) < part.wanted and answers.end is None:
            self._link.connection.read_more(time.monotonic() + ACK_SECONDS)
        answers.forget()
        if answers.end is not None:
            return read_ack(answers.end).error
        if not part.whole and self._all_stored(answers, part.rows.count):
            self.stored += part.rows.count
        else:
            acks = [read_ack(make_reply(*frame)) for frame in answers.frames()]
            trouble = self._batch_trouble(part, acks) if part.whole else self._trouble(part, acks)
            if trouble:
                return trouble
        self._patience.rest()
        self._pending.remove(part)
        self._unacked -= part.rows.count
        self._unacked_bytes -= part.size
        return ""

    def _all_stored(self, answers: Gather, count: int) -> bool:
        """True when all answers are plain PubAcks of the stream: the usual case, without a look at each."""
        payloads = answers.payloads
        text = b"".join(payloads)
        if any(answers.heads) or b'"duplicate"' in text or text.count(self._plain_ack) != count:
            return False
        last = max(zip(map(len, payloads), payloads, strict=True))[1]
        self.last_seq = max(self.last_seq, read_ack(make_reply(b"", last)).seq)
        return True

    def _trouble(self, part: _Part, acks: list[PubAck]) -> str:
        """Counts the acks of rows that went by themselves, or returns the last error that passes."""
        trouble = ""
        for ack in acks:
            if ack.try_again:
                trouble = ack.error
            else:
                self._check(part, ack)
        if not trouble:
            duplicates = sum(ack.duplicate for ack in acks)
            self.duplicates += duplicates
            self.stored += len(acks) - duplicates
            self.last_seq = max(self.last_seq, *[ack.seq for ack in acks])
        return trouble

    def _batch_trouble(self, part: _Part, acks: list[PubAck]) -> str:
        """As `_trouble`, of an atomic batch. Its rows have empty answers, the last one has the ack of all."""
        ack = acks[-1]
        if ack.err_code == DUPLICATE_ID:
            if self._is_stored_full(part):
                self.duplicates += part.rows.count
                return ""
            part.whole = False
            return ack.error
        for one in acks[:-1]:
            if one.error and not one.try_again and one.err_code != NOT_COMPLETE:
                self._check(part, one)
        if ack.try_again or (ack.err_code == NOT_COMPLETE and not part.asking):
            part.asking = ack.err_code == NOT_COMPLETE
            return ack.error
        if ack.err_code == NOT_COMPLETE:
            return ack.error
        self._check(part, ack)
        if ack.messages != part.rows.count:
            raise PublishError(f"{self._stream} stored {ack.messages} rows of a batch of {part.rows.count}")
        self.stored += ack.messages
        self.last_seq = max(self.last_seq, ack.seq)
        return ""

    def _is_stored_full(self, part: _Part) -> bool:
        """Returns whether the full batch that begins with this part's first row is stored, not rows with ids of their
        own: asks with a message that cannot be stored whether its id is known. Raises ConnectionLostError,
        RequestTimeoutError."""
        fields = [(b"Nats-Msg-Id", self._full_id(part)), (b"Nats-Expected-Last-Sequence", b"%d" % NO_SEQUENCE)]
        subject = part.rows.subjects[-1].as_py().decode()
        try:
            ack = read_ack(self._link.connection.request(subject, b"", fields, ACK_SECONDS))
        except NoRespondersError as error:
            raise RequestTimeoutError(str(error)) from error
        if ack.error and ack.err_code != WRONG_SEQUENCE:
            raise RequestTimeoutError(ack.error)
        return not ack.error

    def _check(self, part: _Part, ack: PubAck) -> None:
        """Raises PublishError for an ack that is none."""
        subjects = pc.unique(part.rows.subjects).to_pylist()
        where = subjects[0].decode(errors="replace")
        if len(subjects) > 1:
            where += f" or one of {len(subjects) - 1} other subjects"
        if ack.error:
            raise PublishError(f"{self._stream} refused a message on {where}: {ack.error}")
        if ack.stream != self._stream:
            raise PublishError(f"{where} went to stream {ack.stream}, not {self._stream}")

    def _recover(self, why: object) -> None:
        """Sends every part without its acks again. Raises PublishError when that could store a row twice."""
        while True:
            self._patience.pause(why)
            now = time.monotonic()
            if self._safe_seconds is not None and self._pending and now - self._pending[0].at > self._safe_seconds:
                raise PublishError(
                    f"{self._stream}: no ack for {now - self._pending[0].at:.0f} s, and the stream remembers message "
                    f"ids for {self._safe_seconds:g} s: sending again could store it twice ({why})"
                )
            try:
                for part in self._pending:
                    self._send(part)
            except ConnectionLostError as error:
                self._link.lost()
                why = error
                continue
            self.sent_again += self._unacked
            return


def _goes_whole(part: Rows) -> bool:
    return part.count > 1 and not part.have_ids


def batch_lines(count: int, first: bytes, last: bytes) -> Any:
    """Returns the header lines of an atomic batch of `count` rows: `first` and `last` are lines that only its first and
    its last row have besides."""
    batch_id = os.urandom(12).hex().encode()
    lines = joined(
        b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: " % batch_id, numbers_from_one().slice(0, count), b"\r\n"
    )
    begin, end = joined(lines.slice(0, 1), first), joined(lines.slice(count - 1), b"Nats-Batch-Commit: 1\r\n", last)
    return pa.concat_arrays([begin, lines.slice(1, count - 2), end])


def batch_frames(rows: Rows, reply: bytes, limit: int, lines: Any, *, ask: bool = False) -> bytes:
    """Returns the protocol's lines of an atomic batch, whose last row has the reply subject; `ask`: each row has it.
    Raises PublishError."""
    final = rows.count - 1
    before = render(rows.part(0, final), reply if ask else b"", limit, lines.slice(0, final))
    return b"".join((before, render(rows.part(final, final + 1), reply, limit, lines.slice(final))))
