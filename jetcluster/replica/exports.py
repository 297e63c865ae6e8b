"""Export of a group's state to peers that fetch it: announcements of ranges, reads of their records, and their cost
here.

An export is a fixed view of the state. Every request names the place where it begins, so a repeated request has the
same answer, and no answer depends on an earlier one. Answers are made in slices of milliseconds between other work, and
at most one bounded chunk travels at a time: Raft traffic on the same link waits for one chunk at most.

`SnapshotOwner` is the replica of a group, a stream's or the meta group's, as catch-up sees it. `Troubles` collects what
hinders catch-up and decides when an operator should read a line about it.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from jetcluster.clock import Clock, Rng
from jetcluster.logs import Log
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.mesh.core import MeshCore
from jetcluster.raft.codec import MAX_NUMBER
from jetcluster.raft.membership import Config, MembersError, decode_config, encode_config
from jetcluster.records import dataclass
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.store.transfer import END, START, Giver, Range, Taker, decode_places, encode_ranges


@dataclass(slots=True, frozen=True)
class Cut:
    """One consistent state of a group: everything applied up to `index`, nothing after."""

    index: int
    term: int
    config: Config
    """The configuration as of `index`, not the newest one, which may never be committed."""
    giver: Giver
    size: int = 0
    """Estimated bytes."""
    messages: int = 0
    """Messages; 0 for the meta group."""


class SnapshotOwner(Protocol):
    """A replica that gives its state to peers, or takes theirs."""

    @property
    def state_index(self) -> int:
        """Index of the last command in this replica's state: no older state is taken."""

    @property
    def wants_state(self) -> bool:
        """True while the replica needs another state to go on."""

    @property
    def keeps_state(self) -> bool:
        """True when this replica's state may hold what the giver lacks (both may be damaged): it is not given up before
        the giver has announced everything."""

    def export_failed(self, error: DamagedError) -> None:
        """Note that this replica's state cannot be read completely."""

    def snapshot_export(self) -> Cut:
        """Return the state to export. Raises MeshError when others should not build upon it, and KvError."""

    def snapshot_fetched(self, peer: str, index: int) -> None:
        """Note that `peer` fetches the state of `index` and will need the log after it."""

    def snapshot_begin(self) -> Taker:
        """Give up this replica's state; nothing is applied until `snapshot_end`. Raises KvError."""

    async def snapshot_room(self, size: int) -> None:
        """Make room for `size` bytes, if need be from the state that was given up. Raises KvFullError."""

    async def snapshot_abandon(self) -> None:
        """Remove from the disk what was fetched: the disk cannot take the whole state. Raises KvError."""

    async def snapshot_end(self, index: int, term: int, config: Config) -> None:
        """Make the imported state durable and current, and continue the group after `index`."""


TROUBLE_SECONDS = 30.0
"""Failures shorter than this are not reported: lost links and changes of leaders take less."""
REPEAT_SECONDS = 60.0
"""Least time between two lines about one peer, whatever the trouble and the number of groups."""
NO_METHOD = ": no such method"
"""The end of the answer of a node that does not know the request (`mesh.rpc`)."""


class Troubles:
    """Failed attempts to fetch a state. One per node, with an entry per group that tries and one per peer."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._failing: dict[int, tuple[float, float]] = {}
        """Group -> times of its first and last failure in an unbroken row."""
        self._told: dict[str, float] = {}
        """Peer -> time of the last line about it."""

    def failed(self, gid: int, peer: str, error: MeshError) -> None:
        """Note that the group could not fetch its state from `peer`."""
        now = self._clock.monotonic()
        first, last = self._failing.get(gid, (now, now))
        if now - last > TROUBLE_SECONDS:
            first = now
        self._failing[gid] = first, now
        if isinstance(error, MeshRefusedError) and str(error).endswith(NO_METHOD):
            self.other_version(gid, peer, "it cannot be fetched from there")
        elif now - first < TROUBLE_SECONDS or not self._due(peer):
            self._log.debug("catch-up interrupted", gid=gid, peer=peer, error=str(error))
        else:
            self._log.warning("catch-up does not come on", gid=gid, peer=peer, error=str(error))

    def other_version(self, gid: int, peer: str, text: str) -> None:
        """Report that states cannot travel between the versions of these two nodes."""
        if self._due(peer):
            self._log.warning("a state waits until both nodes run the same version", gid=gid, peer=peer, reason=text)

    def over(self, gid: int) -> None:
        """Note that the group has its state, or is gone."""
        self._failing.pop(gid, None)

    def _due(self, peer: str) -> bool:
        now = self._clock.monotonic()
        if now - self._told.get(peer, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        self._told[peer] = now
        return True


MAX_OPEN_EXPORTS = 16
"""Per node; a further peer is asked to try again."""

EXPORT_IDLE_SECONDS = 30.0
"""An export without a request for this time is dropped."""
ASKED_SECONDS = 5.0
"""The same after which its peer does not count as one that fetches: it may have the state from another one by now."""

SLICE_BYTES = 1 << 20
"""Bytes of large records that are read and digested per slice, about two milliseconds."""
LIST_BYTES = 16 << 20
"""Bytes that one answer announces, in about 30 KB of digests: 300 MB per second over a link of 50 ms."""
CHUNK_BYTES = 512 * 1024

OPEN, RANGES, READ, CLOSE = "snapshot.open.2", "snapshot.ranges", "snapshot.read", "snapshot.close"
"""The number in OPEN increases with every change of these requests or of the contents of a state. So the first call of
two versions that do not fit is refused, before any state is given up."""
ASK_RANGES = struct.Struct("<16sQ")
"""Id of the export, and the bytes that the peer has finished; the place where to begin follows."""
ASK_READ = struct.Struct("<16sI")
"""Id of the export, and the bytes to skip; the places of the spans follow, start and end in turn."""

Spans = list[tuple[bytes, bytes]]


@dataclass(slots=True, frozen=True)
class Opened:
    """The answer to OPEN."""

    id: str
    index: int
    """Index of the newest command in the state."""
    term: int
    config: Config
    """The group's configuration as of `index`."""
    size: int
    messages: int

    def encode(self) -> bytes:
        fields = {"id": self.id, "index": self.index, "term": self.term, "config": encode_config(self.config).hex()}
        return json.dumps(fields | {"size": self.size, "messages": self.messages}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Opened:
        """Raises MeshError for any other data: a receiver must have all of it before it gives up its own state."""
        try:
            fields = json.loads(data)
            index, term, size, messages = (_number(fields[name]) for name in ("index", "term", "size", "messages"))
            config = decode_config(bytes.fromhex(fields["config"]))
            return cls(str(fields["id"]), index, term, config, size, messages)
        except (MembersError, KeyError, TypeError, ValueError) as error:
            raise MeshError(f"no answer to go on with: {error!r}") from error


@dataclass(slots=True)
class _Export:
    gid: int
    peer: str
    index: int
    giver: Giver
    used: float
    size: int
    messages: int
    done: int = 0
    """Bytes that the peer has finished, by its own account."""
    large: tuple[Spans, bytes] | None = None
    """The spans and data of a read that takes more than one answer, while it is in progress."""


class Exports:
    """The open exports of a node. `owners` have the states, by group."""

    def __init__(
        self,
        mesh: MeshCore,
        clock: Clock,
        rng: Rng,
        owners: Mapping[int, SnapshotOwner],
        log: Log,
        troubles: Troubles,
    ) -> None:
        self._clock = clock
        self._troubles = troubles
        self._rng = rng
        self._owners = owners
        self._log = log
        self._open: dict[bytes, _Export] = {}
        mesh.serve(OPEN, self._serve_open)
        mesh.serve(RANGES, self._serve_ranges)
        mesh.serve(READ, self._serve_read)
        mesh.on_notice(CLOSE, self._on_close)

    def __len__(self) -> int:
        return len(self._open)

    def missing(self, gid: int, peer: str) -> int | None:
        """Estimated messages of the group that `peer` lacks; None when it does not fetch them from here."""
        limit = self._clock.monotonic() - ASKED_SECONDS
        for export in self._open.values():
            if export.gid == gid and export.peer == peer and export.used >= limit:
                return rest(export.messages, export.done, export.size)
        return None

    def forget(self, gid: int) -> None:
        self._drop(lambda export: export.gid == gid)

    def tick(self) -> None:
        limit = self._clock.monotonic() - EXPORT_IDLE_SECONDS
        self._drop(lambda export: export.used < limit)

    def clear(self) -> None:
        self._open.clear()

    async def _serve_open(self, peer: str, payload: bytes) -> bytes:
        request = json.loads(payload)
        gid = int(request["gid"])
        owner = self._owners.get(gid)
        if owner is None:
            raise MeshError(f"no replica of group {gid} here")
        # A peer that opens a second export has abandoned the first.
        self._drop(lambda export: export.gid == gid and export.peer == peer)
        self.tick()
        if len(self._open) >= MAX_OPEN_EXPORTS:
            raise MeshError("too many snapshots are being read here")
        if owner.state_index < int(request["index"]):
            raise MeshError(f"this replica stands at {owner.state_index}, before {request['index']}")
        cut = owner.snapshot_export()
        export_id = self._rng.token(8).hex()
        now = self._clock.monotonic()
        self._open[export_id.encode()] = _Export(gid, peer, cut.index, cut.giver, now, cut.size, cut.messages)
        owner.snapshot_fetched(peer, cut.index)
        return Opened(export_id, cut.index, cut.term, cut.config, cut.size, cut.messages).encode()

    async def _serve_ranges(self, peer: str, payload: bytes) -> bytes:
        export_id, done = ASK_RANGES.unpack_from(payload)
        place = payload[ASK_RANGES.size :]
        if not START <= place < END:
            raise MeshError("no such place")
        export = self._asked(peer, export_id)
        export.done = max(export.done, done)
        found: list[Range] = []
        cost = 0
        while place != END and cost < LIST_BYTES:
            if found:
                await asyncio.sleep(0)
                self._asked(peer, export_id)
            with self._reading(export_id, export):
                for _ in export.giver.prepare(place):
                    await asyncio.sleep(0)
                more = export.giver.announce(place, min(SLICE_BYTES, LIST_BYTES))
            found += more
            cost += sum(one.cost for one in more)
            place = more[-1].end
        return encode_ranges(found)

    async def _serve_read(self, peer: str, payload: bytes) -> bytes:
        export_id, offset = ASK_READ.unpack_from(payload)
        spans = _spans(payload[ASK_READ.size :])
        export = self._asked(peer, export_id)
        if export.large is not None and export.large[0] == spans:
            data = export.large[1]
        else:
            with self._reading(export_id, export):
                data = export.giver.read(spans)
        end = offset + CHUNK_BYTES
        export.large = (spans, data) if end < len(data) else None
        return data[offset:end]

    def _on_close(self, peer: str, payload: bytes) -> None:
        """Drop an export that the peer has finished."""
        self._drop(lambda export: export.peer == peer and self._open.get(payload) is export)

    def _asked(self, peer: str, export_id: bytes) -> _Export:
        """Return the export and note that it is in use. Raises MeshError."""
        export = self._open.get(export_id)
        if export is None or export.peer != peer:
            raise MeshError("no such snapshot (it may have been idle for too long)")
        export.used = self._clock.monotonic()
        if export.gid in self._owners:
            self._owners[export.gid].snapshot_fetched(peer, export.index)
        return export

    @contextmanager
    def _reading(self, export_id: bytes, export: _Export) -> Iterator[None]:
        """End the export when a part of it cannot be read. Raises MeshError."""
        try:
            yield
        except (DamagedError, KvError) as error:
            self._open.pop(export_id, None)
            self._log.error("a snapshot cannot be read here", gid=export.gid, error=str(error) or repr(error))
            if isinstance(error, DamagedError) and export.gid in self._owners:
                self._owners[export.gid].export_failed(error)
            raise MeshError(f"the snapshot cannot be read: {error!r}") from error

    def _drop(self, gone: Callable[[_Export], bool]) -> None:
        for export_id in [i for i, export in self._open.items() if gone(export)]:
            del self._open[export_id]


def _number(value: object) -> int:
    """Check an index, a term or a count: the journal could hold no other number."""
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value} is no index and no term")
    return value


def _spans(data: bytes) -> Spans:
    """Raises MeshError unless each span lies within one kind of records."""
    try:
        places = decode_places(data)
        spans = list(zip(places[::2], places[1::2], strict=True))
    except (DamagedError, ValueError) as error:
        raise MeshError("malformed request") from error
    if not all(start < end and end <= bytes([start[0] + 1]) for start, end in spans):
        raise MeshError("malformed request")
    return spans


def rest(messages: int, done: int, size: int) -> int:
    """Estimate how many of `messages` with `size` bytes remain after `done` bytes, for a progress bar."""
    return messages - messages * min(done, size) // size if size else messages
