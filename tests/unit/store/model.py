"""A stream as a plain dict: what BlockStore is compared with. Nothing clever on purpose."""

from __future__ import annotations

from jetcluster.store.api import Msg, StoreState, SubjectState
from jetcluster.store.batch import Batch


def matches(subject_filter: bytes, subject: bytes) -> bool:
    wanted, tokens = subject_filter.split(b"."), subject.split(b".")
    for i, token in enumerate(wanted):
        if token == b">" and i == len(wanted) - 1:
            return len(tokens) > i
        if i >= len(tokens) or token not in (b"*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


class Model:
    def __init__(self, *, memory: bool) -> None:
        self.memory = memory
        self.msgs: dict[int, Msg] = {}
        self.first_seq = 1
        self.last_seq = 0
        self.last_ts = 0

    def size(self, msg: Msg) -> int:
        if self.memory:
            return 16 + len(msg.subject) + len(msg.headers) + len(msg.payload)
        return 30 + len(msg.subject) + len(msg.payload) + (4 + len(msg.headers) if msg.headers else 0)

    def state(self) -> StoreState:
        return StoreState(
            messages=len(self.msgs),
            bytes=sum(map(self.size, self.msgs.values())),
            first_seq=self.first_seq,
            first_ts=self.msgs[self.first_seq].ts if self.msgs else 0,
            last_seq=self.last_seq,
            last_ts=self.last_ts,
            num_subjects=len({m.subject for m in self.msgs.values()}),
            num_deleted=self.last_seq + 1 - self.first_seq - len(self.msgs),
        )

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        if not self.msgs:
            self.first_seq = first_seq
        for i, message in enumerate(batch.messages()):
            self.msgs[first_seq + i] = Msg(first_seq + i, ts + i, *message)
        self.last_seq = first_seq + batch.count - 1
        self.last_ts = ts + batch.count - 1

    def matching(self, subject_filter: bytes) -> list[Msg]:
        return [self.msgs[s] for s in sorted(self.msgs) if matches(subject_filter, self.msgs[s].subject)]

    def remove(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.msgs[seq]
        if seqs:
            self.first_seq = min(self.msgs, default=self.last_seq + 1)
        return len(seqs)

    def purge(self, subject_filter: bytes, keep: int) -> int:
        seqs = [m.seq for m in self.matching(subject_filter)]
        return self.remove(seqs[:-keep] if keep else seqs)

    def compact(self, first_seq: int) -> int:
        gone = self.remove([s for s in self.msgs if s < first_seq])
        if first_seq > self.last_seq + 1:
            self.last_seq = first_seq - 1
        if not self.msgs:
            self.first_seq = self.last_seq + 1
        return gone

    def enforce(self, max_msgs: int, max_bytes: int, max_per_subject: int) -> int:
        gone = 0
        if max_per_subject > 0:
            for subject in {m.subject for m in self.msgs.values()}:
                gone += self.remove([m.seq for m in self.matching(subject)][:-max_per_subject])
        while 0 < max_msgs < len(self.msgs) or 0 < max_bytes < self.state().bytes:
            gone += self.remove([min(self.msgs)])
        return gone

    def subject(self, subject: bytes) -> SubjectState | None:
        seqs = [m.seq for m in self.matching(subject)]
        return SubjectState(len(seqs), seqs[0], seqs[-1]) if seqs else None
