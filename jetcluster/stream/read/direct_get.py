"""`DirectGet`: answers of one replica to `$JS.API.DIRECT.GET...` requests (ADR-31), from its local store.

An answer is frames (header block, payload) to publish to the request's reply subject, in order: a tuple of one frame
for a single get, else a `GetReply`, made piece by piece at the requester's pace, so that 64 MB are never in memory.

All frames of an answer are of the same applied index, that of the request. DamagedError comes from `answer` (nothing
was sent: pass the request to another replica) or from `GetReply.take` (stop without an EOB: the client sees an
incomplete batch). It never becomes a 404.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator
from typing import Final, TypeAlias, Union

from jetcluster import native
from jetcluster.budget import Steps, at_once
from jetcluster.model import durations, times
from jetcluster.model.times import SECOND
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_literal
from jetcluster.store.api import Columns, DamagedError, LostViewError, Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvError
from jetcluster.store.view import View
from jetcluster.stream.fields import REQUIRED_LEVEL, level_is_met
from jetcluster.stream.read.freshness import ANY, Freshness, FreshnessError, of_headers
from jetcluster.stream.read.get_request import GetRequest, MalformedRequest

Frame = tuple[bytes, bytes]
"""(header block or b"", payload)."""

Answer: TypeAlias = Union[tuple[Frame], "GetReply"]

MAX_BYTES: Final = 64 << 20
"""Default of `max_bytes`: nats-server's max_pending."""
MAX_SUBJECTS: Final = 1024
"""Subjects that one multi_last may resolve to."""


def _status(text: bytes) -> tuple[Frame]:
    """An answer that is a status."""
    return ((b"NATS/1.0 %b\r\n\r\n" % text, b""),)


def refusal(error: FreshnessError) -> tuple[Frame]:
    """The answer to a request that asks for an impossible freshness."""
    return _status(b"408 Bad Request: " + str(error).encode())


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


_MESSAGE_HEAD: Final = b"%b%b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
_BATCH_END: Final = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"


_KEPT_BYTES: Final = 1024
"""A longer request is decoded again."""

PROOF: Final = b"Jc-Proof"
"""A request header (our own, docs/compatibility.md) that asks for the replica's applied sequence in the answer."""


class DirectGet:
    """Answers requests from `store`. `stream` names the answering stream, such as a mirror; `server` is for proofs."""

    def __init__(
        self, stream: str, store: BlockStore, server: str = "", excludes_instant: Callable[[], bool] = lambda: False
    ) -> None:
        """`excludes_instant` returns whether a message at exactly `up_to_time` is left out, as by nats-server."""
        self.store = store
        self._excludes_instant = excludes_instant
        self._server = server.encode()
        self._stream = stream.encode()
        self._stream_line = b"Nats-Stream: %b\r\nNats-Subject: " % self._stream
        self._first_line = b"NATS/1.0\r\n" + self._stream_line
        self._decoded: tuple[bytes, GetRequest] = b"", GetRequest()

    def answer(self, payload: bytes, headers: bytes = b"") -> Answer:
        """Returns the answer of `open` in one go, however fresh it is."""
        found = self.open(payload, headers, b"")
        assert found is not None
        return at_once(found) if isinstance(found, Generator) else found

    def open(self, payload: bytes, headers: bytes = b"", info: bytes | None = None) -> Answer | Steps[Answer] | None:
        """Answers the endpoint with a body, or returns steps to an answer of their last moment. Raises DamagedError.
        None: the body asks how fresh the answer must be (`freshness`). Call again with `info` once it is, which is
        added to the answer: `info_of`, or b"" for nothing."""
        if headers:
            if not level_is_met(header_block.get(headers, REQUIRED_LEVEL)):
                return API_LEVEL_TOO_LOW
        elif native.plain_get is not None and (plain := self.plain(payload)) is not None:
            return (plain,)
        if not payload:
            return EMPTY_REQUEST
        try:
            request = self._decode(payload)
        except MalformedRequest:
            return MALFORMED_REQUEST
        except FreshnessError as error:
            return refusal(error)
        if not request.selects:
            return EMPTY_REQUEST
        if request.conflicts:
            return BAD_REQUEST
        if info is None and request.fresh is not ANY:
            return None
        proof = self._proof() if headers and header_block.get(headers, PROOF) is not None else b""
        if request.multi_last:
            found = self._multi(request, proof)
            return _informed_after(found, info) if info else found
        answer = self._batch if request.batch else self._single
        steps = preparing(self.store, request)
        if steps is not None:
            found = _after(steps, answer, request, proof)
            return _informed_after(found, info) if info else found
        return _informed(answer(request, proof), info) if info else answer(request, proof)

    def wishes(self, headers: bytes, payload: bytes) -> Freshness:
        """All that a request asks of the age of its answer. Raises FreshnessError. A payload that is no object has
        none."""
        found = of_headers(headers) if headers else ANY
        try:
            return found.stricter(self._decode(payload).fresh)
        except MalformedRequest:
            return found

    def _decode(self, payload: bytes) -> GetRequest:
        """Does `GetRequest.decode`, once for a request that comes here several times. Its result is never changed."""
        known, request = self._decoded
        if payload is not known:
            request = GetRequest.decode(payload)
            if len(payload) <= _KEPT_BYTES:
                self._decoded = payload, request
        return request

    def plain(self, payload: bytes) -> Frame | None:
        """Answers a request that compiled code has read; None for any other. Raises DamagedError."""
        wanted = None if native.plain_get is None else native.plain_get(payload)
        if wanted is None:
            return None
        message = self.store.get(wanted) if isinstance(wanted, int) else self.store.queries.last_by_subject(wanted)
        return NOT_FOUND[0] if message is None else (self._head(message), message.payload)

    def plain_subject(self, subject: bytes, payload: bytes) -> Frame | None:
        """Answers a request without a body for the last message of a literal subject; None for any other. Raises
        DamagedError."""
        if payload or not subject or b"*" in subject or b">" in subject:
            return None
        message = self.store.queries.last_by_subject(subject)
        return NOT_FOUND[0] if message is None else (self._head(message), message.payload)

    def _single(self, request: GetRequest, proof: bytes) -> Answer:
        message = find_one(self.store, request)
        if message is None:
            return _with_proof(NOT_FOUND, proof)
        return ((b"" if request.no_hdr else self._head(message), message.payload),)

    def answer_subject(
        self,
        subject: bytes,
        payload: bytes,
        headers: bytes = b"",
        *,
        with_pending: bool = False,
        info: bytes | None = None,
    ) -> tuple[Frame] | None:
        """Answers the endpoint with an appended subject: its last message. `with_pending` is the LAST alias, which adds
        the number of older messages of the subject. `info`, None: see `open`. Raises DamagedError."""
        if headers and not level_is_met(header_block.get(headers, REQUIRED_LEVEL)):
            return API_LEVEL_TOO_LOW
        no_headers = False
        if payload:
            try:
                request = self._decode(payload)
            except MalformedRequest:
                return MALFORMED_REQUEST
            except FreshnessError as error:
                return refusal(error)
            # nats-server accepts `{}` and unknown keys; the specification refuses any body
            if request.unknown or request.given not in ([], ["no_hdr"]) or (not request.given and request.fresh is ANY):
                return BAD_REQUEST
            no_headers = request.no_hdr
            if info is None and request.fresh is not ANY:
                return None
        if not subject:
            return BAD_REQUEST
        message = self.store.queries.last_by_subject(subject)
        if message is None:
            return NOT_FOUND if not info else ((_with_info(NOT_FOUND[0][0], info), b""),)
        if no_headers:
            return ((b"" if not info else _with_info(b"", info), message.payload),)
        pending = self.store.count_of(message.subject) - 1 if with_pending else -1
        head = self._head(message, pending)
        return ((head if not info else _with_info(head, info), message.payload),)

    def open_subject(
        self, subject: bytes, payload: bytes, headers: bytes, *, with_pending: bool = False, info: bytes = b""
    ) -> Steps[Answer]:
        """Does `answer_subject` for a wildcard, in steps, as it may take long. Raises DamagedError."""
        if subject != b">":
            yield from self.store.queries.preparing((subject,))
        found = self.answer_subject(subject, payload, headers, with_pending=with_pending, info=info)
        assert found is not None
        return found

    def info_of(self, role: str, age: float | None) -> bytes:
        """Header lines that say how fresh an answer is: `age`, seconds for which newer data may be missing, None for
        unknown; the replica's role and server, and its last sequence."""
        bound = "unknown" if age is None else durations.render(int(age * SECOND))
        lines = b"Nats-Applied-Sequence: %d\r\nNats-Staleness: %b\r\nNats-Answered-By: %b\r\nNats-Answered-As: %b\r\n"
        return lines % (self.store.last_seq, bound.encode(), self._server, role.encode())

    def _head(self, message: Msg, pending: int = -1) -> bytes:
        """The stored block, then the metadata (ADR-31)."""
        seq, ts, subject, stored, _ = message
        start = _stored_fields(stored) + self._stream_line if stored else self._first_line
        return (native.message_head or message_head)(start, subject, seq, ts, pending)

    def _proof(self) -> bytes:
        proof = b"Jc-Applied-Seq: %d\r\nJc-Stream: %b\r\nJc-Peer: %b\r\n"
        return proof % (self.store.last_seq, self._stream, self._server)

    def _batch(self, request: GetRequest, proof: bytes) -> Answer:
        store = self.store
        filter = request.next_by_subj or b">"
        view = store.view(filter, max(start_of(store, request), store.first_seq))
        first = view.first()
        if first is None:
            return _with_proof(NOT_FOUND, proof)
        return GetReply(
            self._first_line,
            self._stream_line,
            view,
            request,
            store.queries.count(filter, first.seq),
            _BATCH_END,
            proof,
        )

    def _ceiling(self, request: GetRequest) -> int:
        """The highest sequence in range; may be beyond the last one."""
        if request.up_to_time is not None:
            # the specification says "less than or equal"; nats-server excludes the instant itself
            return self.store.seq_at_time(request.up_to_time + (not self._excludes_instant())) - 1
        return request.up_to_seq or self.store.last_seq

    def _multi(self, request: GetRequest, proof: bytes) -> Steps[Answer]:
        store = self.store
        while True:
            ceiling = self._ceiling(request)
            within = ceiling if ceiling < store.last_seq else None
            found = yield from store.lasts(request.multi_last, within, MAX_SUBJECTS)
            if within is not None or self._ceiling(request) >= store.last_seq:
                break  # else a message beyond the ceiling was stored meanwhile, and must be left out
        if found is None:
            return TOO_MANY_RESULTS
        if not found:
            return _with_proof(NO_RESULTS, proof)
        # Beyond the last message, it would let later messages into the next page.
        upto = store.last_seq if within is None else within
        page = found[bisect_left(found, request.seq) :]  # the pending count leaves out those below, too (ADR-31)
        end = _BATCH_END[:-2] + b"Nats-UpTo-Sequence: %d\r\n\r\n" % upto
        return GetReply(self._first_line, self._stream_line, store.view_of(page), request, len(page), end, proof)


class GetReply:
    """The frames of a batch or multi_last, made as the requester takes them. All of them, with headers and EOB, are of
    the moment of the request, even if the stream changes meanwhile."""

    __slots__ = (
        "_end",
        "_fields",
        "_first_line",
        "_last",
        "_left",
        "_no_headers",
        "_pending",
        "_room",
        "_stream_line",
        "_trouble",
        "_view",
        "done",
    )

    def __init__(
        self,
        first_line: bytes,
        stream_line: bytes,
        view: View,
        request: GetRequest,
        pending: int,
        end: bytes,
        proof: bytes = b"",
    ) -> None:
        """`end` is the template of the EOB, and `proof` is added to it. A requester that asks for a proof also finds
        our fields after the stored ones, so the stored ones are not stripped then."""
        self._first_line = first_line
        self._stream_line = stream_line
        self._view = view
        self._no_headers = request.no_hdr
        self._left = request.batch or MAX_SUBJECTS
        self._room = request.max_bytes or MAX_BYTES
        self._pending = pending
        self._last = 0
        self._end = end[:-2] + proof.replace(b"%", b"%%") + end[-2:]
        self._fields = _whole_fields if proof else _stored_fields
        self._trouble: Exception | None = None
        self.done = False
        """`take` has returned the EOB."""

    @property
    def frozen(self) -> bool:
        """True while it keeps data that the stream has removed, so that it should end soon."""
        return self._view.frozen

    def take(self, size: int) -> list[Frame]:
        """Returns the next frames, of about `size` bytes, perhaps none; call `hold` before other code runs. Raises
        DamagedError, KvError or LostViewError once the frames made before the error are taken; no EOB follows."""
        frames: list[Frame] = []
        if self._trouble is None:
            try:
                self._fill(frames, size)
            except (DamagedError, KvError, LostViewError) as error:
                self._trouble = error
        if self._trouble is not None and not frames:
            raise self._trouble
        return frames

    def inform(self, info: bytes) -> None:
        """Adds header lines to the EOB."""
        self._end = _with_info(self._end, info.replace(b"%", b"%%"))

    def hold(self) -> None:
        self._view.hold()

    def close(self) -> None:
        self._view.close()

    def _fill(self, frames: list[Frame], size: int) -> None:
        view = self._view
        while size > 0 and self._left and (self._room > 0 or not self._last):  # at least one, however large
            columns = view.take(self._left, size)
            if not columns.seqs:
                break
            size -= self._render(columns, frames)
        if not self._left or self._room <= 0 or view.ended:
            frames.append((self._end % (self._pending, self._last), b""))
            self.done = True

    def _render(self, columns: Columns, frames: list[Frame]) -> int:
        """Adds frames until `max_bytes` is reached; returns their size."""
        make = native.frames_of or frames_of
        more, size, self._pending, self._last, self._room = make(
            columns, self._start_of, self._no_headers, self._pending, self._last, self._room
        )
        frames += more
        self._left -= len(more)
        return size

    def _start_of(self, stored: bytes) -> bytes:
        """The header block of a message up to its subject; `stored` is the block that came with it."""
        return self._fields(stored) + self._stream_line if stored else self._first_line


def frames_of(
    columns: Columns, start_of: Callable[[bytes], bytes], no_headers: bool, pending: int, last: int, room: int
) -> tuple[list[Frame], int, int, int, int]:
    """Returns (frames, their bytes, and `pending`, `last` and `room` after them) of the messages in `columns`, until
    `room` bytes of them are used up; `pending` counts from the first one on."""
    frames: list[Frame] = []
    size = 0
    for seq, when, subject, stored, payload in zip(*columns, strict=True):
        pending -= 1
        head = b"" if no_headers else message_head(start_of(stored), subject, seq, when, pending, last)
        frames.append((head, payload))
        last = seq
        size += len(head) + len(payload)
        room -= len(subject) + len(stored) + len(payload)
        if room <= 0:
            break
    return frames, size, pending, last, room


def message_head(start: bytes, subject: bytes, seq: int, ts: int, pending: int = -1, last: int = -1) -> bytes:
    """The header block of a stored message: `start`, its metadata, and the two fields that are not negative."""
    head = _MESSAGE_HEAD % (start, subject, seq, times.rfc3339_bytes(ts))
    if pending >= 0:
        head += b"Nats-Num-Pending: %d\r\n" % pending
    if last >= 0:
        head += b"Nats-Last-Sequence: %d\r\n" % last
    return head + b"\r\n"


def find_one(store: BlockStore, request: GetRequest) -> Msg | None:
    """The message of a single get (Direct Get or MSG.GET), by the first field present, or None. Raises DamagedError."""
    if request.last_by_subj:
        return store.queries.last_by_subject(request.last_by_subj)
    if request.next_by_subj:
        return store.queries.next_by_subject(request.next_by_subj, max(start_of(store, request), store.first_seq))
    if request.start_time is not None:
        return store.queries.next_by_subject(b">", start_of(store, request))
    return store.get(request.seq)


def preparing(store: BlockStore, request: GetRequest) -> Steps[None] | None:
    """Steps that precede a single get or batch that may take long; None when it does not."""
    wanted = request.last_by_subj or request.next_by_subj
    if is_literal(wanted) or wanted == b">":
        return None
    return store.queries.preparing((wanted,), max(start_of(store, request), 1) if request.batch else 0)


def _after(
    steps: Steps[None], answer: Callable[[GetRequest, bytes], Answer], request: GetRequest, proof: bytes
) -> Steps[Answer]:
    yield from steps
    return answer(request, proof)


def _with_proof(answer: tuple[Frame], proof: bytes) -> tuple[Frame]:
    """Adds `proof` to the header block of a status."""
    return ((answer[0][0][:-2] + proof + b"\r\n", b""),) if proof else answer


def _informed_after(steps: Steps[Answer], info: bytes) -> Steps[Answer]:
    return _informed((yield from steps), info)


def _informed(answer: Answer, info: bytes) -> Answer:
    """Adds header lines to an answer: to its end, where it has several frames."""
    if isinstance(answer, tuple):
        return ((_with_info(answer[0][0], info), answer[0][1]),)
    answer.inform(info)
    return answer


def _with_info(block: bytes, info: bytes) -> bytes:
    """The lines come first: a stored field of the same name must not hide them."""
    cut = block.find(b"\r\n") + 2
    return block[:cut] + info + block[cut:] if block else b"NATS/1.0\r\n" + info + b"\r\n"


def start_of(store: BlockStore, request: GetRequest) -> int:
    """The sequence from which on a request wants messages."""
    return store.seq_at_time(request.start_time) if request.start_time is not None else request.seq


def _stored_fields(block: bytes) -> bytes:
    """The stored header block without its final empty line and without fields named like our metadata: clients read the
    first occurrence, so a stored Nats-Sequence (of a republished message stored again) would hide the real one."""
    if not block.endswith(b"\r\n\r\n"):
        return b"NATS/1.0\r\n"  # no header block: only the payload is of use
    if b"\nNats-" in block:
        for name in _OWN_NAMES:
            block = header_block.remove(block, name)
    return block[:-2]


def _whole_fields(block: bytes) -> bytes:
    """The stored header block without its final empty line."""
    return block[:-2] if block.endswith(b"\r\n\r\n") else b"NATS/1.0\r\n"
