"""`DirectGet`: answers of one replica to `$JS.API.DIRECT.GET...` requests, from its local store.

shared/reference/streams.md section 1. The answer is an iterable of frames (header block, payload), to be published to
the request's reply subject in order. A single get is a tuple of one frame; batches are lazy, so the caller publishes
as fast as the requester takes them and never holds 64 MB.

A lazy answer is bounded by the last sequence at the time of the request; messages that are deleted or evicted while it
runs are stepped over. DamagedError comes out of `answer` (nothing was sent: hand the request to another replica) or
out of the iteration (stop there without an EOB: the client's batch is visibly incomplete). It is never a 404.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from jetcluster import API_LEVEL
from jetcluster.protocol import headers as header_block
from jetcluster.store.api import Msg
from jetcluster.stream import times
from jetcluster.stream.get_request import GetRequest, MalformedRequest
from jetcluster.stream.ports import ReadStore

Frame = tuple[bytes, bytes]
"""(header block or b"", payload)."""

MAX_BYTES: Final = 64 << 20
"""Default of `max_bytes`: nats-server's max_pending."""
MAX_SUBJECTS: Final = 1024
"""Most subjects one multi_last may resolve to."""


def _status(text: bytes) -> tuple[Frame]:
    return ((b"NATS/1.0 %b\r\n\r\n" % text, b""),)


EMPTY_REQUEST: Final = _status(b"408 Empty Request")
MALFORMED_REQUEST: Final = _status(b"408 Malformed Request")
BAD_REQUEST: Final = _status(b"408 Bad Request")
API_LEVEL_TOO_LOW: Final = _status(b"412 Required Api Level")
NOT_FOUND: Final = _status(b"404 Message Not Found")
NO_RESULTS: Final = _status(b"404 No Results")
TOO_MANY_RESULTS: Final = _status(b"413 Too Many Results")

_OWN_NAMES: Final = (
    b"Nats-Stream",
    b"Nats-Subject",
    b"Nats-Sequence",
    b"Nats-Time-Stamp",
    b"Nats-Num-Pending",
    b"Nats-Last-Sequence",
)


_PAGE_HEAD: Final = (
    b"%b%b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
)


class DirectGet:
    """Stateless but for the store. `stream` is the name of the stream that answers: a mirror's own."""

    __slots__ = ("_first_line", "_stream_line", "store")

    def __init__(self, stream: str, store: ReadStore) -> None:
        self.store = store
        self._stream_line = b"Nats-Stream: %b\r\nNats-Subject: " % stream.encode()
        self._first_line = b"NATS/1.0\r\n" + self._stream_line

    def answer(self, payload: bytes, headers: bytes = b"") -> Iterable[Frame]:
        """The body endpoint. Raises DamagedError."""
        if headers and not level_is_met(headers):
            return API_LEVEL_TOO_LOW
        if not payload:
            return EMPTY_REQUEST
        try:
            request = GetRequest.decode(payload)
        except MalformedRequest:
            return MALFORMED_REQUEST
        if not request.selects:
            return EMPTY_REQUEST
        if request.conflicts:
            return BAD_REQUEST
        if request.multi_last:
            return self._multi(request)
        if request.batch:
            return self._batch(request)
        message = find_one(self.store, request)
        if message is None:
            return NOT_FOUND
        return ((b"" if request.no_hdr else self._head(message, b""), message.payload),)

    def answer_subject(
        self, subject: bytes, payload: bytes, headers: bytes = b"", *, with_pending: bool = False
    ) -> Iterable[Frame]:
        """The subject-appended form: last message of `subject`. `with_pending` is the LAST alias (1.10), which adds how
        many older messages of the subject are stored. Raises DamagedError."""
        if headers and not level_is_met(headers):
            return API_LEVEL_TOO_LOW
        no_headers = False
        if payload:
            try:
                request = GetRequest.decode(payload)
            except MalformedRequest:
                return MALFORMED_REQUEST
            # nats-server lets `{}` and unknown keys pass; the specification refuses any body (sheet, R4)
            if request.given != ["no_hdr"] or request.unknown:
                return BAD_REQUEST
            no_headers = request.no_hdr
        if not subject:
            return BAD_REQUEST
        message = self.store.last_by_subject(subject)
        if message is None:
            return NOT_FOUND
        if no_headers:
            return ((b"", message.payload),)
        extra = b""
        if with_pending:
            extra = b"Nats-Num-Pending: %d\r\n" % (self.store.count_of(message.subject) - 1)
        return ((self._head(message, extra), message.payload),)

    def _head(self, message: Msg, extra: bytes) -> bytes:
        """The stored block first and unchanged, the metadata behind it (1.6)."""
        seq, ts, subject, stored, _ = message
        start = _stored_fields(stored) + self._stream_line if stored else self._first_line
        when = times.render(ts)
        return b"%b%b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n%b\r\n" % (start, subject, seq, when, extra)

    def _batch(self, request: GetRequest) -> Iterable[Frame]:
        store = self.store
        start = max(_start(store, request), store.first_seq)
        filter = request.next_by_subj or b">"
        messages = store.scan(filter, start)
        first = next(messages, None)
        if first is None:
            return NOT_FOUND
        return self._batch_frames(request, filter, first, messages, store.count(filter, first.seq))

    def _batch_frames(
        self, request: GetRequest, filter: bytes, first: Msg, rest: Iterator[Msg], pending: int
    ) -> Iterator[Frame]:
        state = self.store.state
        ceiling = state.last_seq
        limit = request.max_bytes or MAX_BYTES
        frame, no_headers = self._batch_frame, request.no_hdr
        size = last = 0
        for message in islice(chain((first,), rest), request.batch):
            seq, _, subject, headers, payload = message
            if seq > ceiling:
                break
            pending = pending - 1 if pending else 0
            yield frame(message, no_headers, pending, last)
            last = seq
            size += len(subject) + len(headers) + len(payload)
            if size >= limit:
                break
        if self.store.state != state:  # more came, or some went: count again (1.8)
            pending = self.store.count(filter, last + 1)
        yield b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n" % (pending, last), b""

    def _batch_frame(self, message: Msg, no_headers: bool, pending: int, last: int) -> Frame:
        if no_headers:
            return b"", message.payload
        seq, ts, subject, stored, payload = message
        start = _stored_fields(stored) + self._stream_line if stored else self._first_line
        return _PAGE_HEAD % (start, subject, seq, times.render(ts), pending, last), payload

    def _multi(self, request: GetRequest) -> Iterable[Frame]:
        store = self.store
        ceiling = request.up_to_seq or store.last_seq
        if request.up_to_time is not None:
            # the specification's "less than or equal"; nats-server excludes the instant itself (sheet, R6)
            ceiling = store.seq_at_time(request.up_to_time + 1) - 1
        found = resolve_last(store, request.multi_last, ceiling)
        if found is None:
            return TOO_MANY_RESULTS
        if not found:
            return NO_RESULTS
        return self._multi_frames(request, found, ceiling)

    def _multi_frames(self, request: GetRequest, found: list[int], ceiling: int) -> Iterator[Frame]:
        limit = request.max_bytes or MAX_BYTES
        pending = len(found)
        sent = size = last = 0
        for seq in found:
            message = self.store.get(seq) if seq >= request.seq else None
            pending -= 1
            if message is None:  # below the page asked for, or gone in the meantime
                continue
            yield self._batch_frame(message, request.no_hdr, pending, last)
            last = seq
            sent += 1
            size += len(message.subject) + len(message.headers) + len(message.payload)
            if sent == request.batch or size >= limit:
                break
        eob = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\nNats-UpTo-Sequence: %d\r\n\r\n"
        yield eob % (pending, last, ceiling), b""


def find_one(store: ReadStore, request: GetRequest) -> Msg | None:
    """The message that a single get (Direct Get or MSG.GET) means, by 1.5. Raises DamagedError."""
    if request.last_by_subj:
        return store.last_by_subject(request.last_by_subj)
    if request.next_by_subj:
        return store.next_by_subject(request.next_by_subj, max(_start(store, request), store.first_seq))
    if request.start_time is not None:
        return store.next_by_subject(b">", _start(store, request))
    return store.get(request.seq)


def resolve_last(store: ReadStore, filters: list[bytes], ceiling: int) -> list[int] | None:
    """Ascending sequences of the last message at or below `ceiling` of every subject that matches any filter; None
    when there are more than MAX_SUBJECTS."""
    found: set[int] = set()
    for filter in dict.fromkeys(filters):
        last = store.last_seq_of(filter)  # the usual case: a subject without wildcards, no older state asked for
        if 0 < last <= ceiling:
            found.add(last)
        else:
            found.update(store.last_seqs(filter, ceiling, MAX_SUBJECTS))
        if len(found) > MAX_SUBJECTS:
            return None
    return sorted(found)


def level_is_met(headers: bytes) -> bool:
    """False when Nats-Required-Api-Level asks for more than we have, or is no number."""
    level = header_block.get(headers, b"Nats-Required-Api-Level")
    if not level:
        return True
    return level.isdigit() and len(level) < 10 and int(level) <= API_LEVEL


def _start(store: ReadStore, request: GetRequest) -> int:
    return store.seq_at_time(request.start_time) if request.start_time is not None else request.seq


def _stored_fields(block: bytes) -> bytes:
    """The stored header block without its final empty line. Fields named like our metadata go: clients take the first
    occurrence, so a stored Nats-Sequence (a republished message stored again) would hide the real one."""
    if not block.endswith(b"\r\n\r\n"):
        return b"NATS/1.0\r\n"  # no header block at all; only the payload is worth showing
    if b"\nNats-" in block:
        for name in _OWN_NAMES:
            block = header_block.remove(block, name)
    return block[:-2]
