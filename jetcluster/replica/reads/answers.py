"""`Answers`: a replica's replies to Direct Gets, from its store.

`membership` decides whether it may reply. Searches take turns with other work, and long replies are sent in pieces
(`pages`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from jetcluster.budget import BusyError, Steps
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Outgoing
from jetcluster.protocol.subjects import is_literal
from jetcluster.replica.reads.pages import PagedReplies
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.services import Settings
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.stream.read.direct_get import Answer, DirectGet, Frame, refusal
from jetcluster.stream.read.freshness import Freshness, FreshnessError

MAX_SEARCHES = 1000
MAX_SEARCH_BYTES = 16 << 20
"""Simultaneous searches per member of a queue group, and the bytes of their requests. Further ones get a 503."""

RUN_BYTES = 8192
"""Bytes of answers to requests that came together."""

TOO_MANY = b"503 Too Many Waiting Reads"
_BUSY = b"NATS/1.0 503\r\n\r\n"
_TOO_MANY = b"NATS/1.0 %b\r\n\r\n" % TOO_MANY


class Answering(Protocol):
    """A `Callback` that answers at once; `info`: header lines to add, None while the request's wishes are not met."""

    def __call__(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin, info: bytes | None = None
    ) -> None: ...


Demanded = Callable[[Answering, Outgoing, Origin], None]


def _never(answering: Answering, request: Outgoing, origin: Origin) -> None:
    raise AssertionError("a member of a queue group has demands")


class Answers:
    """The answers of one member of a queue group."""

    def __init__(self, replica: ReplicaState, settings: Settings) -> None:
        self._runtime, self._settings = replica.runtime, settings
        self._replica = replica
        self._reader = DirectGet(replica.assignment.name, replica.store, replica.network.name, self._excludes_instant)
        self.pages = PagedReplies(replica, self._report)
        self._searches: dict[object, int] = {}
        """Searches in progress -> bytes of their requests."""
        self.answered = 0
        """Requests answered (monitoring)."""
        self.demanded: Demanded = _never
        """Called for a request whose body asks for a freshness; set by the member's `Demands`."""

    @property
    def searching(self) -> int:
        """Number of searches in progress."""
        return len(self._searches)

    def abort(self) -> None:
        """End batches and refuse searches: the stored state must not be read any more."""
        self.pages.abort()
        self._searches.clear()

    def refuse(self, reply: bytes) -> None:
        self._replica.bus.publish(reply, b"", b"", _BUSY)

    def refuse_more(self, reply: bytes) -> None:
        """Refuse because too many reads wait."""
        self._replica.bus.publish(reply, b"", b"", _TOO_MANY)

    def refuse_with(self, reply: bytes, status: bytes, age: float | None, role: str) -> None:
        """Refuse to a requester that asked for a freshness, with what this replica has."""
        info = self._reader.info_of(role, age)
        self._replica.bus.publish(reply, b"", b"", b"NATS/1.0 %b\r\n%b\r\n" % (status, info))

    def reject(self, reply: bytes, error: FreshnessError) -> None:
        ((head, _),) = refusal(error)
        self._replica.bus.publish(reply, b"", b"", head)

    def wishes(self, headers: bytes, payload: bytes) -> Freshness:
        """See `DirectGet.wishes`."""
        return self._reader.wishes(headers, payload)

    def info_of(self, role: str, age: float | None) -> bytes:
        """See `DirectGet.info_of`."""
        return self._reader.info_of(role, age)

    def on_body(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin, info: bytes | None = None
    ) -> None:
        """Answer a request that is described by its body."""
        if reply:
            try:
                found = self._reader.open(payload, headers, info)
            except (DamagedError, KvError) as error:
                self._unreadable(reply, error)
                return
            if found is None:
                self.demanded(self.on_body, (subject, reply, headers, payload), origin)
            elif isinstance(found, Generator):
                self._search(reply, found, len(payload))
            else:
                self._send(reply, found)

    def on_bodies(self, messages: list[Outgoing], origin: Origin) -> int:
        """Does `on_body` for several requests without headers, as a `BulkCallback`."""
        plain = self._reader.plain
        return self._answer_run(messages, origin, lambda _, payload: plain(payload), self.on_body)

    def by_subjects(self, cut: int, one: Callback) -> BulkCallback:
        """Return `one`, a callback of `by_subject`, for several requests."""
        plain = self._reader.plain_subject

        def answer(messages: list[Outgoing], origin: Origin) -> int:
            return self._answer_run(messages, origin, lambda subject, payload: plain(subject[cut:], payload), one)

        return answer

    def _answer_run(
        self,
        messages: list[Outgoing],
        origin: Origin,
        plain: Callable[[bytes, bytes], Frame | None],
        one: Callback,
    ) -> int:
        """Answers together those that `plain` does, up to RUN_BYTES, or the first one by `one`. None after a message
        that cannot be read: the requester's connection sees first how much it was sent."""
        answers: list[tuple[bytes, bytes, bytes]] = []
        size = taken = 0
        for subject, reply, headers, payload in messages:
            taken += 1
            try:
                frame = plain(subject, payload) if reply else None
            except (DamagedError, KvError) as error:
                self._publish(answers)
                self._unreadable(reply, error)
                return taken
            except Exception:
                if taken == 1:
                    raise
                self._publish(answers)
                return taken - 1  # it comes again, and raises alone
            if frame is None:
                self._publish(answers)
                if taken > 1:
                    return taken - 1
                one(subject, reply, headers, payload, origin)
                return taken
            answers.append((reply, *frame))
            size += len(frame[0]) + len(frame[1])
            if size >= RUN_BYTES:
                break
        self._publish(answers)
        return taken

    def _publish(self, answers: list[tuple[bytes, bytes, bytes]]) -> None:
        if answers:
            self.answered += len(answers)
            self._replica.bus.publish_answers(answers)

    def by_subject(self, cut: int, *, alias: bool = False) -> Answering:
        """Return a callback for requests whose subject holds the key, from position `cut` on."""
        answer_subject = self._reader.answer_subject
        publish = self._replica.bus.publish

        def answer(
            subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin, info: bytes | None = None
        ) -> None:
            if not reply:
                return
            key = subject[cut:]
            if (b"*" in key or b">" in key) and not is_literal(key):
                if payload and info is None:
                    self.demanded(answer, (subject, reply, headers, payload), origin)
                    return
                steps = self._reader.open_subject(key, payload, headers, with_pending=alias, info=info or b"")
                self._search(reply, steps, 0)
                return
            try:
                found = answer_subject(key, payload, headers, with_pending=alias, info=info)
            except (DamagedError, KvError) as error:
                self._unreadable(reply, error)
                return
            if found is None:
                self.demanded(answer, (subject, reply, headers, payload), origin)
                return
            ((head, body),) = found
            self.answered += 1
            publish(reply, body, b"", head)

        return answer

    def _search(self, reply: bytes, steps: Steps[Answer], size: int) -> None:
        """Answer after a search, which takes turns with other work. `size`: bytes of the request."""
        if len(self._searches) >= MAX_SEARCHES or (size and sum(self._searches.values()) + size > MAX_SEARCH_BYTES):
            self.refuse(reply)
            return
        search = object()
        self._searches[search] = size

        def over() -> bool:
            """False when the searched state must not be read any more."""
            if self._searches.pop(search, None) is not None:
                return True
            self.refuse(reply)
            return False

        def done(answer: Answer) -> None:
            if over():
                self._send(reply, answer)

        def failed(error: Exception) -> None:
            if over():
                self._unreadable(reply, error)

        try:
            self._runtime.budget.start(self._replica.assignment.account, steps, done, failed)
        except BusyError:
            if over():
                self.refuse(reply)

    def _send(self, reply: bytes, answer: Answer) -> None:
        self.answered += 1
        publish = self._replica.bus.publish
        if isinstance(answer, tuple):
            for headers, payload in answer:
                publish(reply, payload, b"", headers)
        elif not self.pages.has_room:
            publish(reply, b"", b"", _BUSY)
        else:
            self.pages.send(reply, answer)

    def _unreadable(self, reply: bytes, error: Exception) -> None:
        """Leave the group and answer 503, never 404: the client's retry meets a replica that can read the message."""
        self._report(error)
        self.refuse(reply)

    def _report(self, error: Exception) -> None:
        if isinstance(error, DamagedError):
            self._replica.report_damage(error)
        else:
            self._runtime.log.error("the data store cannot be read", error=str(error) or repr(error))

    def _excludes_instant(self) -> bool:
        return self._settings.compat.up_to_time == "exclusive"
