"""Test twins: a message store as one dict (`NaiveStore`), a bus that remembers (`FakeBus`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from jetcluster.protocol.bus import Origin
from jetcluster.store.api import Columns, Msg, StoreState, SubjectState
from jetcluster.store.batch import Batch


def fits(filter: bytes, subject: bytes) -> bool:
    wanted, tokens = (filter or b">").split(b"."), subject.split(b".")
    for i, token in enumerate(wanted):
        if token == b">" and i == len(wanted) - 1:
            return len(tokens) > i
        if i >= len(tokens) or token not in (b"*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


class NaiveView:
    """A list."""

    frozen = False

    def __init__(self, messages: list[Msg], check: Callable[[Msg], object] = id) -> None:
        self.rest = messages
        self.check = check

    @property
    def ended(self) -> bool:
        return not self.rest

    def first(self) -> Msg | None:
        if self.rest:
            self.check(self.rest[0])
        return self.rest[0] if self.rest else None

    def take(self, want: int, size: int) -> Columns:
        if not self.rest:
            return Columns([], [], [], [], [])
        self.check(self.rest[0])
        return Columns(*([field] for field in self.rest.pop(0)))

    def hold(self) -> None: ...

    def close(self) -> None: ...


class NaiveSlices:
    """`store.slices.Slices`, `step` messages at a time."""

    def __init__(self, store: NaiveStore) -> None:
        self.store = store
        self.step = 1_000

    def _below(self, filter: bytes, end: int, start: int = 0) -> list[int]:
        rows = self.store.rows.values()
        return sorted(m.seq for m in rows if start <= m.seq < end and fits(filter, m.subject))

    def cut(self, target: int) -> tuple[int, bool]:
        doomed = self._below(b">", target)
        if len(doomed) <= self.step:
            return self.store.compact(target), True
        return self.store.compact(doomed[self.step]), False

    def newest(self, keep: int, end: int) -> int:
        below = self._below(b">", end)
        return below[-keep] if len(below) > keep else 0

    def spans_all(self, subject_filter: bytes) -> bool:
        return all(fits(subject_filter, m.subject) for m in self.store.rows.values())

    def survey(self, subject_filter: bytes, cursor: bytes) -> tuple[list[bytes], bytes | None]:
        found = [subject for subject, _ in self.store.queries.subjects(subject_filter) if subject >= cursor]
        return found[: self.step], found[self.step] if len(found) > self.step else None

    def count(self, subjects: Sequence[bytes]) -> int:
        return sum(map(self.store.count_of, subjects))

    def is_scattered(self, messages: int) -> bool:
        return messages * 2 < len(self.store.rows)

    def few(self, subjects: Sequence[bytes], end: int) -> list[int]:
        return sorted(m.seq for m in self.store.rows.values() if m.subject in subjects and m.seq < end)

    def remove_few(self, seqs: list[int]) -> bool:
        return len(seqs) <= self.step and self.store.delete_all(seqs) == len(seqs)

    def remove_subjects(
        self, subject_filter: bytes, cursor: bytes, seq: int, end: int
    ) -> tuple[list[int], bytes | None, int]:
        rows = sorted((m.subject, m.seq) for m in self.store.rows.values() if m.seq < end)
        left = [row for row in rows if row >= (cursor, seq) and fits(subject_filter, row[0])]
        gone = sorted(row[1] for row in left[: self.step])
        self.store.delete_all(gone)
        return (gone, *left[self.step]) if len(left) > self.step else (gone, None, 0)

    def remove_matching(self, subject_filter: bytes, seq: int, end: int) -> tuple[list[int], int | None]:
        left = self._below(subject_filter, end, seq)
        self.store.delete_all(left[: self.step])
        return left[: self.step], left[self.step] if len(left) > self.step else None

    def remove_excess(self, limit: int, seq: int, end: int) -> tuple[list[int], int | None]:
        gone: list[int] = []
        for at in self._below(b">", end, seq):
            if self.store.count_of(self.store.rows[at].subject) > limit:
                if len(gone) == self.step:
                    return gone, at
                self.store.delete_all([at])
                gone.append(at)
        return gone, None

    def nth_back(self, subject_filter: bytes, nth: int, end: int) -> tuple[int, int]:
        below = self._below(subject_filter, end)
        if nth <= min(self.step, len(below)):
            return 0, below[-nth]
        return (nth - self.step, below[-self.step]) if len(below) > self.step else (nth, 0)


class NaiveStore:
    """`BlockStore` in the most obvious way: everything is a scan over a dict of messages."""

    def __init__(self, *, memory: bool = False) -> None:
        self.memory = memory
        self.rows: dict[int, Msg] = {}
        self.dirty = False
        self.first_seq = 1
        self.last_seq = 0
        self.last_ts = 0
        self.machine_state: bytes | Callable[[], bytes] | None = None
        self.side: dict[tuple[int, bytes], bytes] = {}
        self.appends = 0
        self.slices = NaiveSlices(self)
        self.queries = self.reader = self

    def size(self, message: Msg) -> int:
        own = len(message.subject) + len(message.headers) + len(message.payload)
        return own + 16 if self.memory else own + 30 + (4 if message.headers else 0)

    @property
    def state(self) -> StoreState:
        first = self.rows.get(self.first_seq)
        count = len(self.rows)
        return StoreState(
            messages=count,
            bytes=sum(map(self.size, self.rows.values())),
            first_seq=self.first_seq,
            first_ts=first.ts if first else 0,
            last_seq=self.last_seq,
            last_ts=self.last_ts,
            num_subjects=len({m.subject for m in self.rows.values()}),
            num_deleted=self.last_seq - self.first_seq + 1 - count if count else 0,
        )

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        assert first_seq == self.last_seq + 1 and ts > self.last_ts, (first_seq, ts, self.last_seq, self.last_ts)
        self.appends += 1
        for i, (subject, headers, payload) in enumerate(batch.messages()):
            self.rows[first_seq + i] = Msg(first_seq + i, ts + i, subject, headers, payload)
            self.last_seq, self.last_ts = first_seq + i, ts + i
        self.first_seq = min(self.rows)

    def get(self, seq: int) -> Msg | None:
        return self.rows.get(seq)

    def last_by_subject(self, filter: bytes, up_to: int | None = None) -> Msg | None:
        top = self.last_seq if up_to is None else up_to
        found = [m for m in self.rows.values() if m.seq <= top and fits(filter, m.subject)]
        return max(found, default=None)

    def next_by_subject(self, filter: bytes, seq: int) -> Msg | None:
        return next(self.scan(filter, seq), None)

    def seq_at_time(self, ts: int) -> int:
        return min((m.seq for m in self.rows.values() if m.ts >= ts), default=self.last_seq + 1)

    def scan(self, filter: bytes, seq: int) -> Iterator[Msg]:
        while True:
            later = [s for s, m in self.rows.items() if s >= seq and fits(filter, m.subject)]
            if not later:
                return
            seq = min(later) + 1
            yield self.rows[seq - 1]

    def view(self, filter: bytes, seq: int) -> NaiveView:
        return NaiveView([m for s, m in sorted(self.rows.items()) if s >= seq and fits(filter, m.subject)])

    def view_of(self, seqs: Sequence[int]) -> NaiveView:
        return NaiveView([self.rows[seq] for seq in seqs])

    def count(self, filter: bytes, seq: int) -> int:
        return sum(m.seq >= seq and fits(filter, m.subject) for m in self.rows.values())

    def subject(self, subject: bytes) -> SubjectState | None:
        seqs = [m.seq for m in self.rows.values() if m.subject == subject]
        return SubjectState(len(seqs), min(seqs), max(seqs)) if seqs else None

    def subjects(self, filter: bytes) -> Iterator[tuple[bytes, SubjectState]]:
        for subject in sorted({m.subject for m in self.rows.values() if fits(filter, m.subject)}):
            state = self.subject(subject)
            assert state is not None
            yield subject, state

    @property
    def messages(self) -> int:
        return len(self.rows)

    @property
    def first_ts(self) -> int:
        return self.state.first_ts

    @property
    def byte_count(self) -> int:
        return self.state.bytes

    @property
    def blocks(self) -> StoreState:
        return self.state

    def last_seq_of(self, subject: bytes) -> int:
        state = self.subject(subject)
        return state.last if state else 0

    def count_of(self, subject: bytes) -> int:
        state = self.subject(subject)
        return state.count if state else 0

    def last_seqs(self, filter: bytes, up_to: int | None = None, limit: int | None = None) -> list[int]:
        top = self.last_seq if up_to is None else up_to
        found = {m.subject: m.seq for m in sorted(self.rows.values()) if m.seq <= top and fits(filter, m.subject)}
        return sorted(found.values())

    def last_seqs_any(self, filters: Sequence[bytes], up_to: int | None = None) -> list[int]:
        return sorted({seq for filter in filters for seq in self.last_seqs(filter, up_to)})

    def last_of_any(self, filters: Sequence[bytes]) -> int:
        return max((m.seq for m in self.rows.values() if any(fits(f, m.subject) for f in filters)), default=0)

    def count_any(self, filters: Sequence[bytes], seq: int) -> int:
        return sum(m.seq >= seq and any(fits(f, m.subject) for f in filters) for m in self.rows.values())

    def preparing(self, filters: Sequence[bytes], seq: int = 0) -> Generator[None, None, None]:
        yield

    def lasts(self, filters: Sequence[bytes], up_to: int | None, limit: int) -> Generator[None, None, list[int] | None]:
        yield
        found = self.last_seqs_any(filters, up_to)
        return found if len(found) <= limit else None

    def find_lasts(self, filters: Iterable[bytes]) -> None: ...

    def last_seq_matching(self, filter: bytes) -> int:
        return self.last_of_any([filter])

    def subject_counts(self, filter: bytes) -> list[tuple[bytes, int]]:
        return [(subject, state.count) for subject, state in self.subjects(filter)]

    def deleted(self, limit: int) -> list[int]:
        return [s for s in range(self.first_seq, self.last_seq + 1) if s not in self.rows][:limit]

    def delete(self, seq: int) -> bool:
        return self._drop([seq]) == 1

    def delete_all(self, seqs: Sequence[int]) -> int:
        return self._drop(list(seqs))

    def contains(self, seq: int) -> bool:
        return seq in self.rows

    def purge(self, filter: bytes = b">", keep: int = 0) -> int:
        found = sorted(m.seq for m in self.rows.values() if fits(filter, m.subject))
        return self._drop(found[: max(len(found) - keep, 0)])

    def compact(self, first_seq: int) -> int:
        dropped = self._drop([s for s in self.rows if s < first_seq])
        self.last_seq = max(self.last_seq, first_seq - 1)
        self.first_seq = min(self.rows, default=self.last_seq + 1)
        return dropped

    @property
    def num_subjects(self) -> int:
        return self.state.num_subjects

    def cut_excess(self, max_msgs: int, max_bytes: int, below: int = 1 << 64) -> tuple[int, bool]:
        before = len(self.rows)
        while self.rows and ((0 < max_msgs < len(self.rows)) or (0 < max_bytes < self.byte_count)):
            if before - len(self.rows) == self.slices.step:
                return before - len(self.rows), False
            self._drop([min(self.rows)])
        return before - len(self.rows), True

    def enforce(
        self,
        max_msgs: int = -1,
        max_bytes: int = -1,
        max_per_subject: int = -1,
        touched_subjects: Sequence[bytes] = (),
        *,
        below: int = 1 << 64,
    ) -> int:
        dropped = 0
        if max_per_subject > 0:
            for subject in touched_subjects:
                seqs = sorted(m.seq for m in self.rows.values() if m.subject == subject)
                excess = seqs[: max(len(seqs) - max_per_subject, 0)]
                dropped += self._drop([seq for seq in excess if seq < below])
        while (
            self.rows
            and min(self.rows) < below
            and ((0 < max_msgs < len(self.rows)) or (0 < max_bytes < self.byte_count))
        ):
            dropped += self._drop([min(self.rows)])
        return dropped

    def expire(self, before_ts: int) -> int:
        return self._drop([m.seq for m in self.rows.values() if m.ts < before_ts])

    def load_machine_state(self) -> bytes | None:
        return self.machine_state() if callable(self.machine_state) else self.machine_state

    def save_machine_state(self, state: bytes | Callable[[], bytes]) -> None:
        self.machine_state = state

    def side_put(self, kind: int, key: bytes, value: bytes) -> None:
        self.side[kind, key] = value

    def side_delete(self, kind: int, key: bytes) -> None:
        del self.side[kind, key]

    def side_get(self, kind: int, key: bytes) -> bytes | None:
        return self.side.get((kind, key))

    def side_scan(self, kind: int, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for (k, key), value in self.side.items() if k == kind and key >= start))

    def reopen(self) -> NaiveStore:
        """The store as a restart finds it."""
        self.machine_state = self.load_machine_state()
        return self

    def everything(self) -> object:
        """All that a replica holds, to compare two of them."""
        return self.load_machine_state(), self.side, self.rows, self.state

    def _drop(self, seqs: list[int]) -> int:
        dropped = sum(self.rows.pop(seq, None) is not None for seq in seqs)
        if dropped:
            self.first_seq = min(self.rows, default=self.last_seq + 1)
        return dropped


class ClientOrigin(Origin):
    kind = "client"
    account = "$G"


class ServerOrigin(Origin):
    kind = "internal"
    account = "$G"


class FakeBus:
    """`Bus` as far as `Ingest` uses it."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes, bytes]] = []
        self.bulks = 0

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        self.sent.append((subject, payload, headers))
        return 1

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        self.bulks += 1
        self.sent += [(subject, payload, b"") for subject, payload in messages]


def block(*fields: str) -> bytes:
    """A header block of `Key: value` lines."""
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *fields, "")).encode()
