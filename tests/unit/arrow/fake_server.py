"""`StreamPeer`, a scripted server with one stream `S`, as the source meets it: replies are made by the real Direct Get
reader from stores that the test fills, one for the leader and one for the replica that answers, which may lag.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jetcluster.arrow.options import SourceOptions
from jetcluster.errors import ApiError
from jetcluster.model.times import rfc3339
from jetcluster.spark.options import source_options
from jetcluster.store.batch import Batch
from jetcluster.stream.read import msg_get
from jetcluster.stream.read.direct_get import DirectGet, Frame
from tests.unit.client.fake_server import Peer, hmsg, msg
from tests.unit.stream.fake_store import NaiveStore

T0 = 1_795_167_385_000_000_000
CREATED = "2026-11-22T00:00:00Z"

Row = tuple[str, bytes, bytes]
"""(subject, header block, payload)."""


def numbered(count: int, subjects: tuple[str, ...] = ("a.x", "a.y", "b.x")) -> list[Row]:
    return [(subjects[n % len(subjects)], b"", b"%d" % (n + 1)) for n in range(count)]


def store_of(rows: Iterable[Row], gaps: Iterable[int] = ()) -> NaiveStore:
    store = NaiveStore()
    for at, (subject, headers, payload) in enumerate(rows):
        store.append(Batch.of([subject.encode()], [headers] if headers else [], [payload]), at + 1, T0 + at * 1000)
    store.delete_all(list(gaps))
    return store


class StreamPeer(Peer):
    """`replicas` are stores that answer Direct Gets in turn, the last one for good; None: 503. `ours` gives proofs.
    `spoil` may change the frames of an answer; `streams` names the mirrors whose replicas some stores are."""

    def __init__(
        self,
        leader: NaiveStore,
        replicas: list[NaiveStore | None] | None = None,
        *,
        ours: bool = True,
        spoil: Callable[[int, list[Frame]], list[Frame]] = lambda _, frames: frames,
        created: str = CREATED,
        streams: dict[int, str] | None = None,
        addressable: bool = True,
    ) -> None:
        self.leader = leader
        self.replicas = replicas or [leader]
        self.ours = ours
        self.spoil = spoil
        self.created = created
        self.streams = streams or {}
        self.addressable = addressable
        self.silent_info = False
        self.deleted = False
        """STREAM.INFO says that there is no such stream, and nobody answers Direct Gets."""
        self.deposed: NaiveStore | None = None
        """The messages of a leader of before, which answers STREAM.INFO to those who want no proof that it leads."""
        self._proves = False
        self.unproven = 0
        """Requests for a proof of freshness that are refused, as if no leader could be asked."""
        self.gets = 0
        self.leader_asked = 0
        super().__init__(self._reply, {"go": "python3.11" if ours else "go1.26", "server_name": "n1"})

    def _reply(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
        name = subject.decode()
        if self.deleted and name != "$JS.API.STREAM.INFO.S":
            return hmsg(reply, b"NATS/1.0 503\r\n\r\n")
        if self.deleted:
            return msg(reply, b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}')
        if name == "$JS.API.STREAM.INFO.S" and self.silent_info:
            return msg(reply, b'{"error":{"code":503,"err_code":10008,"description":"unavailable"}}')
        if name == "$JS.API.STREAM.INFO.S":
            self._proves = b"Nats-Read-Consistency: linearizable\r\n" in headers
            return msg(reply, json.dumps(self.info(json.loads(payload or b"{}"))).encode())
        if name == "$JS.API.STREAM.NAMES":
            return msg(reply, b'{"total":2,"offset":0,"limit":1024,"streams":["OTHER","S"]}')
        if name == "$JS.API.STREAM.MSG.GET.S":
            self.leader_asked += 1
            try:
                return msg(reply, msg_get.answer(self.leader, msg_get.decode(payload)))
            except ApiError as error:
                return msg(reply, json.dumps({"error": error.to_dict()}).encode())
        addressed = self.ours and self.addressable and name == "$JS.API.DIRECT.PEER.S.n1"
        if name == "$JS.API.DIRECT.GET.S" or addressed:
            return b"".join(self._frames(reply, payload, headers if self.ours else b""))
        return hmsg(reply, b"NATS/1.0 503\r\n\r\n")

    def _frames(self, reply: bytes, payload: bytes, headers: bytes) -> Iterator[bytes]:
        store = self.replicas.pop(0) if len(self.replicas) > 1 else self.replicas[0]
        self.gets += 1
        if store is None:
            yield hmsg(reply, b"NATS/1.0 503\r\n\r\n")
            return
        wanted = json.loads(payload)
        if self.ours and wanted.get("min_last_seq", 0) > store.last_seq:
            applied = b"Nats-Applied-Sequence: %d\r\nNats-Answered-By: n1\r\n" % store.last_seq
            yield hmsg(reply, b"NATS/1.0 503 Min Last Sequence\r\n%b\r\n" % applied)
            return
        if self.unproven and ("consistency" in wanted or "max_staleness" in wanted):
            self.unproven -= 1
            yield hmsg(reply, b"NATS/1.0 503 No Leader\r\n\r\n")
            return
        answer = DirectGet(self.streams.get(id(store), "S"), store, "n1").answer(payload, headers)
        frames = list(answer) if isinstance(answer, tuple) else answer.take(1 << 30)
        for head, body in self.spoil(self.gets, frames):
            yield hmsg(reply, head, body)

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        store = self.leader if self._proves or self.deposed is None else self.deposed
        state: dict[str, Any] = {"messages": store.messages, "bytes": store.byte_count, "first_seq": store.first_seq,
                 "last_seq": store.last_seq, "first_ts": rfc3339(T0 + (store.first_seq - 1) * 1000),
                 "last_ts": rfc3339(T0 + (store.last_seq - 1) * 1000)}  # fmt: skip
        total = 0
        if "subjects_filter" in request:  # two per page
            found = store.queries.subject_counts(request["subjects_filter"].encode())
            offset, total = request["offset"], len(found)
            state["subjects"] = {name.decode(): count for name, count in found[offset : offset + 2]}
        return {
            "total": total,
            "config": {"name": "S", "allow_direct": True, "retention": "limits"},
            "created": self.created,
            "state": state,
            "cluster": {"leader": "n1", "replicas": []},
        }


def options_for(*peers: Peer, **given: object) -> SourceOptions:
    servers = ",".join(peer.url for peer in peers)
    return source_options(
        {"servers": servers, "stream": "S", "requestTimeout": "300ms"} | {k: str(v) for k, v in given.items()}
    )
