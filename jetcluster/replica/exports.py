"""Giving a group's state to peers that fetch it: what is announced, what is read, what that costs this node.

An export is a fixed view of the state. All requests name the place where to begin, so that the answer to one that is
asked again is the same, and nothing here depends on what came before. Answers are made in slices of milliseconds
between other work; what travels at once is one bounded chunk: Raft traffic on the same link waits for one at most.

`SnapshotOwner` is the replica of a group, a stream's or the meta group's, as catch-up sees it. `Troubles` keeps what
hinders catch-up, and says when that is worth a line in the log that an operator reads.
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
    """As of `index`, not as of now: a newer one may never be committed."""
    giver: Giver
    size: int = 0
    """About as many bytes, in all."""
    messages: int = 0
    """In all; 0 when it is not a stream's."""


class SnapshotOwner(Protocol):
    """A replica as its peers take snapshots from it and give it theirs."""

    @property
    def state_index(self) -> int:
        """The last command that the own state holds: nothing older is taken."""
        ...

    @property
    def wants_state(self) -> bool:
        """Another state is still what brings this replica on."""
        ...

    @property
    def keeps_state(self) -> bool:
        """The own state has something that the giver's may lack (both may be damaged): it is not given up before the
        giver has shown that it can give everything."""
        ...

    def export_failed(self, error: DamagedError) -> None:
        """The own state cannot be read to its end."""
        ...

    def snapshot_export(self) -> Cut:
        """Raises MeshError when this replica has no state that others should build upon, and KvError."""
        ...

    def snapshot_fetched(self, peer: str, index: int) -> None:
        """`peer` is being given the state of `index` and will need the log behind it."""
        ...

    def snapshot_begin(self) -> Taker:
        """Gives up the own state, for what is to take its place; nothing is applied from here on until `snapshot_end`.
        Raises KvError."""
        ...

    async def snapshot_room(self, size: int) -> None:
        """Before `size` bytes are taken: frees what was given up, if need be. Raises KvFullError when the disk cannot
        take it."""
        ...

    async def snapshot_abandon(self) -> None:
        """The disk cannot take all of it: what has come leaves the disk again. Raises KvError."""
        ...

    async def snapshot_end(self, index: int, term: int, config: Config) -> None:
        """Makes the imported state durable and current, and continues the group after `index`."""
        ...


PATIENCE = 30.0
"""Links that are lost and leaders that change are no trouble: they are over sooner than that."""
PAUSE = 60.0
"""Between two lines about the same peer, with any trouble and number of groups."""
NO_METHOD = ": no such method"
"""The end of the answer of a node that does not know what it was asked (`mesh.rpc`)."""


class Troubles:
    """One per node. It keeps one entry per group that tries, and one per peer."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._failing: dict[int, tuple[float, float]] = {}
        """Group -> when it failed first and last, of failures without a longer pause between them."""
        self._told: dict[str, float] = {}
        """Peer -> when it was last written about."""

    def failed(self, gid: int, peer: str, error: MeshError) -> None:
        """The group could not fetch its state from `peer`."""
        now = self._clock.monotonic()
        first, last = self._failing.get(gid, (now, now))
        if now - last > PATIENCE:
            first = now
        self._failing[gid] = first, now
        if isinstance(error, MeshRefusedError) and str(error).endswith(NO_METHOD):
            self.other_version(gid, peer, "it cannot be fetched from there")
        elif now - first < PATIENCE or not self._due(peer):
            self._log.debug("catch-up interrupted", gid=gid, peer=peer, error=str(error))
        else:
            self._log.warning("catch-up does not come on", gid=gid, peer=peer, error=str(error))

    def other_version(self, gid: int, peer: str, text: str) -> None:
        """States do not travel between nodes of these two versions."""
        if self._due(peer):
            self._log.warning("a state waits until both nodes run the same version", gid=gid, peer=peer, reason=text)

    def over(self, gid: int) -> None:
        """The group has its state, or is gone."""
        self._failing.pop(gid, None)

    def _due(self, peer: str) -> bool:
        now = self._clock.monotonic()
        if now - self._told.get(peer, -PAUSE) < PAUSE:
            return False
        self._told[peer] = now
        return True


MAX_OPEN_EXPORTS = 16
"""Per node; a peer beyond that is told to ask again."""

EXPORT_IDLE_SECONDS = 30.0
"""An export that nobody asked anything of for so long is dropped."""

SLICE = 1 << 20
"""Bytes of large records that are read and summed up at a time; some two milliseconds."""
LIST_COST = 16 << 20
"""The bytes that one answer announces, in about 30 KB of digests. Over a link of 50 ms it lets 300 MB per second be
compared."""
CHUNK_BYTES = 512 * 1024

OPEN, RANGES, READ, CLOSE = "snapshot.open.2", "snapshot.ranges", "snapshot.read", "snapshot.close"
"""The number goes up with every change of what the two sides say to each other, and of what is in a state that a
version before would not understand. So the first call of a pair that does not fit is refused, and nothing given up."""
ASK_RANGES = struct.Struct("<16sQ")
"""Id of the export and how many bytes the asker is done with; the place where to begin follows."""
ASK_READ = struct.Struct("<16sI")
"""Id of the export and how many bytes to leave out; the places of the spans follow, start and end in turn."""

Spans = list[tuple[bytes, bytes]]


@dataclass(slots=True, frozen=True)
class Opened:
    """The answer to OPEN."""

    id: str
    index: int
    """Term of the newest command in the state."""
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
        """Raises MeshError for anything else: what a receiver needs in the end it has before it gives up its own."""
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
    """Bytes of it that the peer has, as far as it said."""
    large: tuple[Spans, bytes] | None = None
    """An export that takes more than one answer, while it is being given."""


class Exports:
    """One per node. `owners` have the states, by group."""

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
        """Messages of the group that `peer` lacks, about; None when it does not fetch them from here."""
        for export in self._open.values():
            if export.gid == gid and export.peer == peer:
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
        # A peer that opens again has given up what it read before.
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
        while place != END and cost < LIST_COST:
            if found:
                await asyncio.sleep(0)
                self._asked(peer, export_id)
            with self._reading(export_id, export):
                more = export.giver.announce(place, min(SLICE, LIST_COST))
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
        """The peer has what it wants."""
        self._drop(lambda export: export.peer == peer and self._open.get(payload) is export)

    def _asked(self, peer: str, export_id: bytes) -> _Export:
        """The export, which is in use, and its peer alive. Raises MeshError."""
        export = self._open.get(export_id)
        if export is None or export.peer != peer:
            raise MeshError("no such snapshot (it may have been idle for too long)")
        export.used = self._clock.monotonic()
        if export.gid in self._owners:
            self._owners[export.gid].snapshot_fetched(peer, export.index)
        return export

    @contextmanager
    def _reading(self, export_id: bytes, export: _Export) -> Iterator[None]:
        """Ends the export when a part of it cannot be read. Raises MeshError."""
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
    """An index, a term or a count: the journal could hold no other, and none comes back from beyond."""
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value} is no index and no term")
    return value


def _spans(data: bytes) -> Spans:
    """Raises MeshError unless each lies within one kind of records."""
    try:
        places = decode_places(data)
        spans = list(zip(places[::2], places[1::2], strict=True))
    except (DamagedError, ValueError) as error:
        raise MeshError("malformed request") from error
    if not all(start < end and end <= bytes([start[0] + 1]) for start, end in spans):
        raise MeshError("malformed request")
    return spans


def rest(messages: int, done: int, size: int) -> int:
    """Estimate of the `messages` of `size` bytes that are left when `done` bytes are done, for a progress bar."""
    return messages - messages * min(done, size) // size if size else messages
