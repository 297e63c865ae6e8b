"""`Uploads`: the uploads of one bucket, from the metadata to the finished object, on the leader of its stream.

An upload has three parts in the stream's log: its record (`$OBJ.<b>.upload.<nonce>`, the client's metadata unchanged),
its chunks, which are ordinary messages, and at the end one REPLACE, which stores the info and removes the record, the
previous info and the chunks of the replaced object. After a crash the log holds a record with some chunks, or an
object, and no state between them; a new leader reads the records, continues the uploads and ends the complete ones.

Only committed chunks are acked. The reply to the last chunk is held until the REPLACE is applied.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from jetcluster.errors import (
    OBJECT_DIGEST,
    OBJECT_MISMATCH,
    TOO_MANY_REQUESTS,
    UPLOAD_ABORTED,
    UPLOAD_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    ApiError,
    by_code,
)
from jetcluster.objects.catalog import Catalog
from jetcluster.objects.host import BucketHost, BucketReplies
from jetcluster.objects.layout import Layout
from jetcluster.objects.metadata import Info, Meta, dump, invalid, load, parse_info, parse_meta
from jetcluster.objects.upload import Upload, UploadState, end_of_upload, removal_of_upload
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin
from jetcluster.records import NamedTuple
from jetcluster.store.api import DamagedError, Msg
from jetcluster.stream.lead.atomic_stage import BATCH_ID
from jetcluster.stream.ports import Duplicate

SUBJECT: Final = b"Nats-Object-Subject"
REPLY: Final = b"Nats-Object-Reply"
"""Header fields of an upload's record: the subject of the info, and the publisher of the metadata."""
MSG_ID: Final = b"Nats-Msg-Id"
SCAN_BYTES: Final = 4 << 20
"""Bytes read in one step after a leader change."""
MAX_REMEMBERED: Final = 1000
"""Most aborted uploads remembered, to refuse their late chunks; and most waiting chunks of an upload."""
MAX_ATTEMPTS: Final = 8
"""Attempts at a REPLACE, which is computed anew when the object has changed meanwhile."""
IDLE_CHECK_NS: Final = 1_000_000_000


class _Waiting(NamedTuple):
    upload: Upload
    reply: bytes
    payload: bytes | None
    """None for the upload's record."""


class Uploads:
    """The uploads of one term of leadership. `layout` has the specification's subjects. Methods raise DamagedError."""

    def __init__(self, host: BucketHost, layout: Layout, catalog: Catalog, replies: BucketReplies, own: Origin) -> None:
        """`own` is the origin of the service's own messages."""
        self.by_nonce: dict[str, Upload] = {}
        self.finished = 0
        """Completed uploads (monitoring)."""
        self._host = host
        self._store = host.store
        self._layout = layout
        self._catalog = catalog
        self._replies = replies
        self._own = own
        self._waiting: dict[bytes, _Waiting] = {}
        """Token -> record or chunk in flight."""
        self._answers: list[tuple[bytes, bytes, bytes]] = []
        self._aborted: dict[str, ApiError] = {}
        self._held_bytes = 0
        self._next_check = 0
        self._closed = False

    # ---- life

    def take_over(self) -> None:
        """Continue the stored uploads."""
        for subject, state in list(self._store.queries.subjects(self._layout.uploads)):
            record = self._store.get(state.last)
            if record is not None:
                self._continue(subject, record)
        for upload in list(self.by_nonce.values()):
            self._settle(upload)

    def close(self) -> None:
        """End the term: later outcomes are ignored."""
        self._closed = True
        self.by_nonce.clear()
        self._waiting.clear()

    def tick(self) -> None:
        """Repeat failed proposals, and drop idle uploads. Called a few times per second."""
        now = self._host.clock.time_ns()
        looks = now >= self._next_check
        if looks:
            self._next_check = now + IDLE_CHECK_NS
        for upload in list(self.by_nonce.values()):
            if upload.state is UploadState.COMPLETE:
                self._finish(upload)
            elif upload.state is UploadState.FAILED:
                self._drop(upload)
            elif looks and upload.idle and now - upload.touched >= self._host.limits().idle * 1e9:
                self._fail(upload, by_code(UPLOAD_ABORTED, err="no chunk came for too long"))

    @property
    def scans(self) -> bool:
        """True while stored chunks of uploads taken over must be read."""
        return any(upload.scanning for upload in self.by_nonce.values())

    def scan(self) -> None:
        """Read some of these chunks."""
        upload = next((upload for upload in self.by_nonce.values() if upload.scanning), None)
        if upload is None:
            return
        size = 0
        for message in self._store.queries.scan(self._chunks(upload), upload.scanned + 1):
            upload.take(message.seq, message.payload)
            size += len(message.payload) + 256
            if size >= SCAN_BYTES:
                return
        upload.scanning = False
        self._settle(upload)

    def _continue(self, subject: bytes, record: Msg) -> None:
        """Take over an upload from its record."""
        info_subject = header_block.get(record.headers, SUBJECT) or b""
        nonce = subject.rpartition(b".")[2].decode("utf-8", "replace")
        try:
            meta = parse_meta(record.payload, self._layout.bucket, info_subject.removeprefix(self._layout.info(b"")))
        except ApiError:  # not a record of this service: restored from elsewhere
            return
        if meta.nonce != nonce:
            return
        upload = Upload(meta, info_subject, header_block.get(record.headers, REPLY) or b"", record.ts)
        upload.record_seq = record.seq
        last = self._store.queries.last_by_subject(self._layout.chunks(nonce))
        if last is not None:
            upload.scanning = True
            upload.touched = last.ts
        self.by_nonce[nonce] = upload

    # ---- messages

    def on_metadata(self, meta: Meta, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Begin an upload whose info goes to `subject`. Raises ApiError when it cannot begin."""
        if self._is_repeated(meta, subject, reply):
            return
        upload = self.by_nonce[meta.nonce] = Upload(meta, subject, reply, self._host.clock.time_ns())
        self._aborted.pop(meta.nonce, None)
        pairs = [(SUBJECT, subject), (REPLY, reply), (MSG_ID, header_block.get(headers, MSG_ID))]
        record = header_block.build([(key, value) for key, value in pairs if value])
        token = self._token(upload, reply, None)
        self._host.publish(self._layout.upload(meta.nonce), token, record, payload, self._own)

    def _is_repeated(self, meta: Meta, subject: bytes, reply: bytes) -> bool:
        """Ack an upload that has begun already as a duplicate. Raises ApiError when it cannot begin."""
        known = self._alive(meta.nonce)
        if known is not None:
            if known.subject != subject or known.meta != meta:
                raise invalid("the nonce is in use")
            if known.record_seq:
                self._host.tell(reply, self._host.acks.ack(Duplicate(known.record_seq)))
            return True
        if len(self.by_nonce) >= self._host.limits().uploads:
            raise by_code(TOO_MANY_REQUESTS)
        if meta.nonce in self.by_nonce or self._store.count_of(self._layout.chunks(meta.nonce)):
            raise invalid("the nonce is in use")
        self._check_subject(meta, subject)
        return False

    def _check_subject(self, meta: Meta, subject: bytes) -> None:
        """Raise ApiError if the subject holds another object: a name may equal the base64url form of another."""
        there = self._catalog.at(subject)
        if there is not None and there.name != meta.name and not there.deleted:
            raise invalid(f"the subject holds the object {there.name!r}")

    def on_chunk(self, nonce: str, reply: bytes, headers: bytes, payload: bytes) -> None:
        upload = self._alive(nonce)
        if upload is None:
            self._on_stray(nonce, reply, headers, payload)
        elif BATCH_ID in headers:
            self._host.refuse(reply, by_code(10174))
        elif upload.held or not self._fits(upload, payload):
            self._hold(upload, reply, headers, payload)
            self._settle(upload)
        else:
            self._submit(upload, reply, headers, payload)

    def _alive(self, nonce: str) -> Upload | None:
        """Return the upload, unless it ended or its record is gone (by a purge, or expired)."""
        upload = self.by_nonce.get(nonce)
        if upload is None or upload.state in (UploadState.FAILED, UploadState.DROPPING):
            return None
        gone = upload.record_seq and self._store.last_seq_of(self._record(upload)) != upload.record_seq
        if gone and upload.state is not UploadState.FINISHING:
            self._fail(upload, by_code(UPLOAD_ABORTED, err="its record is gone"))
            return None
        return upload

    def _on_stray(self, nonce: str, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Answer a chunk of no upload; a last chunk, sent again as its answer was lost with a leader, gets that."""
        aborted = self._aborted.get(nonce)
        if aborted is not None:
            self._host.refuse(reply, aborted)
            return
        last = self._store.queries.last_by_subject(self._layout.chunks(nonce))
        info = self._catalog.by_nonce(nonce) if last is not None and last.payload == payload else None
        if info is not None:
            self._host.tell(reply, self._final_answer(info))
        elif last is None or not self._is_duplicate(reply, headers):
            self._host.refuse(reply, by_code(UPLOAD_NOT_FOUND))

    def _is_duplicate(self, reply: bytes, headers: bytes) -> bool:
        """Ack a chunk that is stored already as a duplicate, whatever became of its upload; False for any other."""
        msg_id = header_block.get(headers, MSG_ID) if headers else None
        seq = self._host.seq_of_id(msg_id) if msg_id else None
        if seq is None:
            return False
        self._host.tell(reply, self._host.acks.ack(Duplicate(seq)))
        return True

    def _fits(self, upload: Upload, payload: bytes) -> bool:
        stored = self._store.count_of(self._chunks(upload)) if upload.scanning else 0
        return upload.state is UploadState.OPEN and upload.fits(len(payload), stored)

    def _submit(self, upload: Upload, reply: bytes, headers: bytes, payload: bytes) -> None:
        upload.touched = self._host.clock.time_ns()
        upload.in_flight += 1
        upload.in_flight_bytes += len(payload)
        token = self._token(upload, reply, payload)
        self._host.publish(self._chunks(upload), token, headers, payload, self._own)

    def _hold(self, upload: Upload, reply: bytes, headers: bytes, payload: bytes) -> None:
        size = len(headers) + len(payload)
        if self._held_bytes + size > self._host.limits().held_bytes or len(upload.held) >= MAX_REMEMBERED:
            self._host.refuse(reply, by_code(TOO_MANY_REQUESTS))
            return
        upload.held.append((reply, headers, payload))
        self._held_bytes += size

    def _unhold(self, upload: Upload) -> tuple[bytes, bytes, bytes]:
        held = upload.held.popleft()
        self._held_bytes -= len(held[1]) + len(held[2])
        return held

    def _token(self, upload: Upload, reply: bytes, payload: bytes | None) -> bytes:
        token = self._replies.token()
        self._waiting[token] = _Waiting(upload, reply, payload)
        return token

    # ---- outcomes

    def answered(self, token: bytes, headers: bytes, body: bytes) -> None:
        """Note an answer, inside apply; it is handled after that."""
        if not self._answers:
            self._host.call_soon(self._look_at_answers)
        self._answers.append((token, headers, body))

    def _look_at_answers(self) -> None:
        answers, self._answers = self._answers, []
        for token, headers, body in answers:
            waiting = self._waiting.pop(token, None)
            if waiting is None or self._closed:
                continue
            try:
                self._on_outcome(waiting, headers, body)
            except DamagedError as error:
                self._host.damaged(error)

    def _on_outcome(self, waiting: _Waiting, headers: bytes, body: bytes) -> None:
        upload, reply, payload = waiting
        seq = _stored_as(body)
        if payload is None:
            self._record_answered(upload, reply, headers, body, seq)
            return
        upload.in_flight -= 1
        upload.in_flight_bytes -= len(payload)
        if upload.state in (UploadState.FAILED, UploadState.DROPPING):
            self._host.refuse(reply, self._aborted.get(upload.meta.nonce) or by_code(UPLOAD_NOT_FOUND))
            self._drop(upload)
            return
        if seq and not upload.scanning and seq > upload.scanned:
            upload.take(seq, payload)
            if upload.full:
                upload.waiters.append(reply)
                self._settle(upload)
                return
        self._host.tell(reply, body, headers)
        self._settle(upload)

    def _record_answered(self, upload: Upload, reply: bytes, headers: bytes, body: bytes, seq: int) -> None:
        self._host.tell(reply, body, headers)
        if seq:
            upload.record_seq = seq
            self._settle(upload)
        else:  # refused, or a duplicate by its Nats-Msg-Id: the upload does not exist
            self._fail(upload, by_code(UPLOAD_NOT_FOUND), remember=False)

    def _settle(self, upload: Upload) -> None:
        """Do what is possible now: end a full upload, submit waiting chunks."""
        if upload.undecided():
            return
        if upload.state is UploadState.OPEN and upload.full:
            self._complete(upload)
        while upload.held and upload.state is not UploadState.FAILED:
            if self._fits(upload, upload.held[0][2]):
                self._submit(upload, *self._unhold(upload))
            elif upload.undecided():
                return
            elif not self._join(upload):
                self._turn_away(upload)

    def _join(self, upload: Upload) -> bool:
        """Let a repeated last chunk wait for the answer to the first one; False for any other chunk."""
        if upload.state not in (UploadState.COMPLETE, UploadState.FINISHING) or not upload.last_seq:
            return False
        last = self._store.get(upload.last_seq)
        if last is None or last.payload != upload.held[0][2]:
            return False
        upload.waiters.append(self._unhold(upload)[0])
        return True

    def _turn_away(self, upload: Upload) -> None:
        """Refuse a surplus chunk. A complete upload is unaffected; any other fails."""
        reply, headers, _ = upload.held[0]
        if self._is_duplicate(reply, headers):
            self._unhold(upload)
            return
        error = by_code(OBJECT_MISMATCH, err="more than was announced")
        if upload.state is UploadState.OPEN:
            self._fail(upload, error)
        else:
            self._host.refuse(self._unhold(upload)[0], error)

    # ---- the end of an upload

    def _complete(self, upload: Upload) -> None:
        """Check the content of a full upload against its metadata, and finish or fail it."""
        wrong = upload.mismatch()
        stored = self._store.count_of(self._chunks(upload))
        if not wrong and stored != upload.count:
            wrong = f"{stored} of {upload.count} chunks are left in the stream"
        if wrong:
            self._fail(upload, by_code(OBJECT_MISMATCH, err=wrong))
        elif upload.meta.digest not in (b"", upload.sha.digest()):
            self._fail(upload, by_code(OBJECT_DIGEST))
        else:
            upload.state = UploadState.COMPLETE
            self._finish(upload)

    def _finish(self, upload: Upload) -> None:
        try:
            self._check_subject(upload.meta, upload.subject)
        except ApiError as error:
            self._fail(upload, error)
            return
        info = upload.meta.info(self._layout.bucket, upload.sha.digest())
        now = self._host.clock.time_ns()
        command = end_of_upload(self._layout, self._store, self._catalog, upload, info, now)
        if self._host.propose(command, partial(self._finish_answered, upload, info)):
            upload.state = UploadState.FINISHING

    def _finish_answered(self, upload: Upload, info: bytes, result: int | ApiError | None) -> None:
        if result is None or self._closed:
            return  # the next leader ends the upload
        upload.state = UploadState.COMPLETE
        if not isinstance(result, ApiError):
            self._finished(upload, info, result)
            return
        upload.attempts += 1
        if result.err_code != WRONG_LAST_SEQUENCE or upload.attempts >= MAX_ATTEMPTS:
            self._fail(upload, result)
        elif self._alive(upload.meta.nonce) is not None:
            if self._store.last_seq_of(self._chunks(upload)) != upload.last_seq:
                self._fail(upload, by_code(OBJECT_MISMATCH, err="chunks came or went meanwhile"))
            else:
                self._finish(upload)

    def _finished(self, upload: Upload, payload: bytes, seq: int) -> None:
        self._forget(upload)
        self.finished += 1
        self._host.bus.publish(upload.subject, payload)  # for the bucket's watchers
        stored = self._store.get(seq)  # unless it was replaced in the same turn
        ts = stored.ts if stored is not None else self._host.clock.time_ns()
        info = parse_info(Msg(seq, ts, upload.subject, b"", payload), self._layout.bucket)
        assert info is not None
        answer = self._final_answer(info)
        for reply in [reply for reply in upload.waiters if reply] or [upload.record_reply]:
            self._host.tell(reply, answer)

    def _final_answer(self, info: Info) -> bytes:
        """Return the info, with the fields that a client expects in a PubAck."""
        return dump({**info.wire(), **self._host.keys, "seq": info.seq})

    def _fail(self, upload: Upload, error: ApiError, *, remember: bool = True) -> None:
        """End the upload with an error. Its stored parts go as soon as no more of them can be stored."""
        upload.state = UploadState.FAILED
        if remember:
            self._aborted[upload.meta.nonce] = by_code(UPLOAD_ABORTED, err=error.description)
            if len(self._aborted) > MAX_REMEMBERED:
                del self._aborted[next(iter(self._aborted))]
        waiting = [reply for reply in upload.waiters if reply]
        if upload.full and not waiting:
            waiting = [upload.record_reply]
        while upload.held:
            waiting.append(self._unhold(upload)[0])
        for reply in waiting:
            self._host.refuse(reply, error)
        upload.waiters = []
        self._drop(upload)

    def _drop(self, upload: Upload) -> None:
        if upload.in_flight or upload.state is UploadState.DROPPING:
            return
        if not self._store.last_seq_of(self._record(upload)) and not self._store.count_of(self._chunks(upload)):
            self._forget(upload)
            return
        command = removal_of_upload(self._layout, self._store, upload, self._host.clock.time_ns())
        if self._host.propose(command, partial(self._drop_answered, upload)):
            upload.state = UploadState.DROPPING

    def _drop_answered(self, upload: Upload, result: int | ApiError | None) -> None:
        if result is not None and not self._closed:
            self._forget(upload)

    def _forget(self, upload: Upload) -> None:
        if self.by_nonce.get(upload.meta.nonce) is upload:
            del self.by_nonce[upload.meta.nonce]

    def _record(self, upload: Upload) -> bytes:
        return self._layout.upload(upload.meta.nonce)

    def _chunks(self, upload: Upload) -> bytes:
        return self._layout.chunks(upload.meta.nonce)


def _stored_as(ack: bytes) -> int:
    """Return the sequence in a PubAck; 0 when the message was not stored now: refused, or a duplicate."""
    if not ack:
        return 0
    fields = load(ack)
    return 0 if fields.get("error") or fields.get("duplicate") else int(fields["seq"])
