"""`Uploads`: the uploads of one bucket, from the metadata to the finished object, on the leader of its stream.

An upload is three things in the stream's log: its record (`$OBJ.<b>.upload.<nonce>`, the client's metadata as it
came), its chunks, which are ordinary messages, and in the end one REPLACE, which stores the info and removes the
record, the older info and the chunks of the object it replaces. After a crash the log holds a record with some chunks,
or an object, never something between them; a new leader reads the records and goes on with them, ending those that are
complete.

Publishers hear only of committed chunks. The reply of the last chunk is held until the REPLACE is applied.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

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
from jetcluster.store.api import DamagedError, Msg
from jetcluster.stream.atomic_stage import BATCH_ID
from jetcluster.stream.ports import Duplicate

SUBJECT: Final = b"Nats-Object-Subject"
REPLY: Final = b"Nats-Object-Reply"
"""Header fields of an upload's record: the subject of the info, and the publisher of the metadata."""
MSG_ID: Final = b"Nats-Msg-Id"
SCAN_BYTES: Final = 4 << 20
"""Read in one step after a leader change."""
MAX_REMEMBERED: Final = 1000
"""The most aborted uploads that are remembered, to refuse their late chunks; and the most chunks of an upload that may
wait."""
MAX_ATTEMPTS: Final = 8
"""Most times that a REPLACE is worked out anew because something else happened to the object."""
IDLE_CHECK_NS: Final = 1_000_000_000


class _Waiting(NamedTuple):
    upload: Upload
    reply: bytes
    payload: bytes | None
    """None: it is the upload's record."""


class Uploads:
    """For one term of leadership. `layout` is one that has the specification's subjects. Methods raise DamagedError."""

    def __init__(self, host: BucketHost, layout: Layout, catalog: Catalog, replies: BucketReplies, own: Origin) -> None:
        """`own` is the origin of what the service publishes by itself."""
        self.by_nonce: dict[str, Upload] = {}
        self.finished = 0
        """Completed (monitoring)."""
        self._host = host
        self._store = host.store
        self._layout = layout
        self._catalog = catalog
        self._replies = replies
        self._own = own
        self._waiting: dict[bytes, _Waiting] = {}
        """The chunks in flight by their tokens."""
        self._answers: list[tuple[bytes, bytes, bytes]] = []
        self._aborted: dict[str, ApiError] = {}
        self._held_bytes = 0
        self._next_check = 0
        self._closed = False

    # ---- life

    def take_over(self) -> None:
        """Goes on with what is stored."""
        for subject, state in list(self._store.queries.subjects(self._layout.uploads)):
            record = self._store.get(state.last)
            if record is not None:
                self._continue(subject, record)
        for upload in list(self.by_nonce.values()):
            self._settle(upload)

    def close(self) -> None:
        """Not the leader any more: what comes back is not looked at."""
        self._closed = True
        self.by_nonce.clear()
        self._waiting.clear()

    def tick(self) -> None:
        """Proposes again what could not be proposed, and drops uploads that do not go on. Called a few times per
        second."""
        now = self._host.clock.time_ns()
        looks = now >= self._next_check
        if looks:
            self._next_check = now + IDLE_CHECK_NS
        for upload in list(self.by_nonce.values()):
            if upload.state is UploadState.COMPLETE:
                self._finish(upload)
            elif upload.state is UploadState.FAILED:
                self._drop(upload)
            elif looks and upload.idle and now - upload.touched >= self._host.limits.idle * 1e9:
                self._fail(upload, by_code(UPLOAD_ABORTED, err="no chunk came for too long"))

    @property
    def scans(self) -> bool:
        """Stored chunks of uploads taken over are still to be read."""
        return any(upload.scanning for upload in self.by_nonce.values())

    def scan(self) -> None:
        """Reads some of them."""
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
        """Takes an upload over from its record."""
        info_subject = header_block.get(record.headers, SUBJECT) or b""
        nonce = subject.rpartition(b".")[2].decode("utf-8", "replace")
        try:
            meta = parse_meta(record.payload, self._layout.bucket, info_subject.removeprefix(self._layout.info(b"")))
        except ApiError:  # no record of ours: restored from elsewhere
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

    # ---- what is published

    def on_metadata(self, meta: Meta, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Begins an upload whose info goes to `subject`. Raises ApiError when it cannot begin."""
        if self._is_repeated(meta, subject, reply):
            return
        upload = self.by_nonce[meta.nonce] = Upload(meta, subject, reply, self._host.clock.time_ns())
        self._aborted.pop(meta.nonce, None)
        pairs = [(SUBJECT, subject), (REPLY, reply), (MSG_ID, header_block.get(headers, MSG_ID))]
        record = header_block.build([(key, value) for key, value in pairs if value])
        token = self._token(upload, reply, None)
        self._host.publish(self._layout.upload(meta.nonce), token, record, payload, self._own)

    def _is_repeated(self, meta: Meta, subject: bytes, reply: bytes) -> bool:
        """An upload that was begun already is acked as a duplicate. Raises ApiError when it cannot begin."""
        known = self._alive(meta.nonce)
        if known is not None:
            if known.subject != subject or known.meta != meta:
                raise invalid("the nonce is in use")
            if known.record_seq:
                self._host.tell(reply, self._host.acks.ack(Duplicate(known.record_seq)))
            return True
        if len(self.by_nonce) >= self._host.limits.uploads:
            raise by_code(TOO_MANY_REQUESTS)
        if meta.nonce in self.by_nonce or self._store.count_of(self._layout.chunks(meta.nonce)):
            raise invalid("the nonce is in use")
        self._check_subject(meta, subject)
        return False

    def _check_subject(self, meta: Meta, subject: bytes) -> None:
        """Names and base64url forms of other names can be the same. Raises ApiError."""
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
        """The upload, unless it ended or its record is gone (the stream was purged, the record expired)."""
        upload = self.by_nonce.get(nonce)
        if upload is None or upload.state in (UploadState.FAILED, UploadState.DROPPING):
            return None
        gone = upload.record_seq and self._store.last_seq_of(self._record(upload)) != upload.record_seq
        if gone and upload.state is not UploadState.FINISHING:
            self._fail(upload, by_code(UPLOAD_ABORTED, err="its record is gone"))
            return None
        return upload

    def _on_stray(self, nonce: str, reply: bytes, headers: bytes, payload: bytes) -> None:
        """A chunk of no upload. One that was the last of an upload that is finished, sent again because its answer was
        lost with a leader, gets that answer."""
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
        """A chunk that is stored already is acked as such, wherever its upload is by now."""
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
        if self._held_bytes + size > self._host.limits.held_bytes or len(upload.held) >= MAX_REMEMBERED:
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

    # ---- what became of it

    def answered(self, token: bytes, headers: bytes, body: bytes) -> None:
        """Called from inside apply: looked at when that is over."""
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
        else:  # refused, or a duplicate by its Nats-Msg-Id: there is no such upload
            self._fail(upload, by_code(UPLOAD_NOT_FOUND), remember=False)

    def _settle(self, upload: Upload) -> None:
        """Decides what can be decided now: the end of a full upload, chunks that waited."""
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
        """The last chunk once more: its answer will be that of the first one. False for any other chunk."""
        if upload.state not in (UploadState.COMPLETE, UploadState.FINISHING) or not upload.last_seq:
            return False
        last = self._store.get(upload.last_seq)
        if last is None or last.payload != upload.held[0][2]:
            return False
        upload.waiters.append(self._unhold(upload)[0])
        return True

    def _turn_away(self, upload: Upload) -> None:
        """A chunk too many. What is complete does not suffer from it; any other upload cannot become right any more."""
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
        """All chunks are stored: is it what was announced?"""
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
            return  # the next leader ends it
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
        """The info, and what a client that expects a PubAck looks for."""
        return dump({**info.wire(), **self._host.keys, "seq": info.seq})

    def _fail(self, upload: Upload, error: ApiError, *, remember: bool = True) -> None:
        """The upload ends here. What is stored of it goes as soon as nothing more of it can be stored."""
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
    """Sequence of the message a PubAck is for; 0 when it was not stored now: refused, or a duplicate."""
    if not ack:
        return 0
    fields = load(ack)
    return 0 if fields.get("error") or fields.get("duplicate") else int(fields["seq"])
