"""Bringing up a replica whose next log entry no peer's journal holds any more.

The replica pulls: it opens a snapshot at a peer, fetches chunks one at a time, each asked for when the last one is
stored, installs them, makes them durable, and only then tells its Raft group to continue after the snapshot's index.
The peer produces chunks lazily from its store and keeps serving; nothing on its side grows with the stream's size, and
Raft traffic on the same link waits for one chunk at most.

Chunks are numbered, and the peer keeps the last one and the place after it: after a lost link the transfer goes on
where it was. It begins anew when either process ends, or when the link is away for longer than RESUME_SECONDS.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jetcluster.clock import Clock, Rng
from jetcluster.cluster.mesh_api import Mesh, MeshError, MeshRefusedError
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError, KvFullError

if TYPE_CHECKING:
    from jetcluster.cluster.context import Log

MAX_OPEN_EXPORTS = 16
"""Per node; a peer beyond that is told to ask again."""

EXPORT_IDLE_SECONDS = 30.0
"""An export that nobody asked a chunk of for so long is dropped."""

RESUME_SECONDS = 25.0
"""A peer out of reach is asked for the next chunk for so long; less than it keeps the export."""

CHUNK_TIMEOUT = 10.0
RETRY_PAUSE = 0.2
"""After a pull that failed; the Raft group asks again anyway as long as it needs the state."""
CHUNK_BYTES = 512 * 1024
FULL_SECONDS = 30.0
"""A state that did not fit on the disk is not fetched again for so long, unless it is half as large by then."""


@dataclass(slots=True, frozen=True)
class Cut:
    """One consistent state of a group: everything applied up to `index`, nothing after."""

    index: int
    term: int
    peers: tuple[str, ...]
    """The voters as of `index`, not as of now: a newer configuration may never be committed."""
    chunks: Iterator[bytes]
    learners: tuple[str, ...] = ()
    size: int = 0
    """About as many bytes, in all."""
    messages: int = 0
    """In all; 0 when it is not a stream's."""


class SnapshotOwner(Protocol):
    """What a replica offers to, and takes from, its peers."""

    @property
    def state_index(self) -> int:
        """The last command that the own state holds: nothing older is taken."""
        ...

    @property
    def keeps_state(self) -> bool:
        """The own state has something that the giver's may lack (both may be damaged): it is not given up before the
        giver has shown that it can give everything."""
        ...

    def export_failed(self, error: DamagedError) -> None:
        """The own state cannot be read to its end."""
        ...

    def snapshot_export(self, chunk_bytes: int) -> Cut:
        """Raises MeshError when this replica has no state that others should build upon, and KvError."""
        ...

    def snapshot_begin(self) -> None:
        """Gives up the own state; nothing is applied from here on until `snapshot_end`."""
        ...

    async def snapshot_room(self, size: int) -> None:
        """Before a chunk of `size` bytes: frees what was given up, if need be. Raises KvFullError when the disk cannot
        take it."""
        ...

    def snapshot_chunk(self, chunk: bytes) -> None: ...

    async def snapshot_abandon(self) -> None:
        """The disk cannot take all of it: what has come leaves the disk again. Raises KvError."""
        ...

    async def snapshot_end(self, index: int, term: int, peers: tuple[str, ...], learners: tuple[str, ...] = ()) -> None:
        """Makes the imported state durable and current, and continues the group after `index`."""
        ...


@dataclass(slots=True)
class _Export:
    gid: int
    peer: str
    chunks: Iterator[bytes]
    used: float
    size: int
    messages: int
    sent: int = 0
    number: int = 0
    """Of the next chunk."""
    last: bytes = b""
    """The chunk before that one, which may not have arrived; empty at the end."""
    ended: bool = False


@dataclass(slots=True)
class Pull:
    """One transfer to this node (for monitoring)."""

    gid: int
    peer: str
    began: float
    size: int
    """About as many bytes will come."""
    messages: int
    """In all of them."""
    received: int = 0
    """Bytes so far."""
    stalled: bool = False
    """The peer is out of reach."""

    @property
    def missing(self) -> int:
        """Messages that have not come yet, about."""
        return _rest(self.messages, self.received, self.size)


class CatchUp:
    """Serves this node's snapshots and pulls those of peers. One pull per group at a time."""

    def __init__(self, mesh: Mesh, clock: Clock, rng: Rng, owners: dict[int, SnapshotOwner], log: Log) -> None:
        self._mesh = mesh
        self._clock = clock
        self._rng = rng
        self._owners = owners
        self._log = log
        self._exports: dict[str, _Export] = {}
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._stopped = False
        self.transfers: dict[int, Pull] = {}
        """What the running pull of a group has received."""
        self._too_large: dict[int, tuple[int, float]] = {}
        """Group -> the size of a state that did not fit, and until when that counts."""
        mesh.serve("snapshot.open", self._serve_open)
        mesh.serve("snapshot.next", self._serve_next)

    def pull(self, gid: int, peer: str, index: int) -> None:
        """Starts to bring group `gid` to at least `index` from `peer`. While a pull is running it does nothing, but for
        one that waits for another peer that is out of reach: that ends, so that the next call finds none."""
        task = self._pulls.get(gid)
        if task is not None:
            running = self.transfers.get(gid)
            if running is not None and running.stalled and running.peer != peer:
                task.cancel()
        elif not self._stopped:
            task = asyncio.get_running_loop().create_task(self._pull(gid, peer, index), name=f"catch-up {gid}")
            self._pulls[gid] = task
            task.add_done_callback(lambda _: self._pulls.pop(gid, None))

    def running(self, gid: int) -> bool:
        return gid in self._pulls

    def progress(self) -> list[tuple[Pull, float]]:
        """The transfers to this node and how many seconds each runs (for monitoring)."""
        now = self._clock.monotonic()
        return [(pull, now - pull.began) for _, pull in sorted(self.transfers.items())]

    def missing(self, gid: int, peer: str) -> int | None:
        """Messages that `peer`, which fetches the state of the group from here, has not been sent yet; None when it
        does not fetch it."""
        for export in self._exports.values():
            if export.gid == gid and export.peer == peer and not export.ended:
                return _rest(export.messages, export.sent, export.size)
        return None

    @property
    def exports(self) -> int:
        """Snapshots being read here (for monitoring); each pins a view of the data store."""
        return sum(not export.ended for export in self._exports.values())

    def forget(self, gid: int) -> None:
        """The replica goes away: its pull ends before it takes another step, nobody reads its state any more."""
        self._too_large.pop(gid, None)
        task = self._pulls.get(gid)
        if task is not None:
            task.cancel()
        self._drop(lambda export: export.gid == gid)

    def tick(self) -> None:
        limit = self._clock.monotonic() - EXPORT_IDLE_SECONDS
        self._drop(lambda export: export.used < limit)

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._pulls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._exports.clear()

    async def _pull(self, gid: int, peer: str, index: int) -> None:
        """Never raises: the group asks again (`on_snapshot_needed`) as long as it cannot go on. A half import is marked
        as such in the store and is never served."""
        try:
            await self._fetch(self._owners[gid], gid, peer, index)
        except MeshError as error:
            self._log.debug("catch-up interrupted", gid=gid, peer=peer, error=str(error))
            await asyncio.sleep(RETRY_PAUSE)
        except (DamagedError, KvError) as error:
            self._log.error("catch-up failed", gid=gid, peer=peer, error=str(error) or repr(error))
            await asyncio.sleep(RETRY_PAUSE)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task; silence would look like a slow peer
            self._log.error("catch-up failed", gid=gid, peer=peer, error=repr(error))
            await asyncio.sleep(RETRY_PAUSE)
        finally:
            self.transfers.pop(gid, None)

    async def _fetch(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> None:
        opened = await self._open(owner, gid, peer, index)
        if owner.keeps_state:
            await self._transfer(gid, peer, opened, None)
            opened = await self._open(owner, gid, peer, index)
        try:
            owner.snapshot_begin()
            await self._transfer(gid, peer, opened, owner)
            peers, learners = tuple(opened["peers"]), tuple(opened.get("learners", ()))
            await owner.snapshot_end(opened["index"], opened["term"], peers, learners)
        except KvFullError:
            # Others need what is left: no half of it is kept, and no whole one fetched again and again.
            self._too_large[gid] = opened.get("size", 0), self._clock.monotonic() + FULL_SECONDS
            await owner.snapshot_abandon()
            raise
        self._too_large.pop(gid, None)
        self._log.info("caught up from a snapshot", gid=gid, peer=peer, index=opened["index"])

    async def _open(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> dict[str, Any]:
        request = json.dumps({"gid": gid, "index": max(index, owner.state_index)}).encode()
        opened: dict[str, Any] = json.loads(await self._mesh.call(peer, "snapshot.open", request))
        if opened["index"] < owner.state_index:
            raise MeshError("the log was faster")
        size, until = self._too_large.get(gid, (0, 0.0))
        if opened.get("size", 0) > size // 2 and self._clock.monotonic() < until:
            raise MeshError("there is no room for it yet")
        return opened

    async def _transfer(self, gid: int, peer: str, opened: dict[str, Any], owner: SnapshotOwner | None) -> None:
        """Without an `owner` it is only read, to its end."""
        pull = Pull(gid, peer, self._clock.monotonic(), opened.get("size", 0), opened.get("messages", 0))
        self.transfers[gid] = pull
        export_id = opened["id"].encode()
        for number in itertools.count():
            chunk = await self._chunk(pull, b"%b %d" % (export_id, number))
            if not chunk:
                break
            if owner is not None:
                await owner.snapshot_room(len(chunk))
                owner.snapshot_chunk(chunk)
            pull.received += len(chunk)

    async def _chunk(self, pull: Pull, request: bytes) -> bytes:
        """Raises MeshError."""
        until = self._clock.monotonic() + RESUME_SECONDS
        while True:
            try:
                chunk = await self._mesh.call(pull.peer, "snapshot.next", request, CHUNK_TIMEOUT)
            except MeshRefusedError:
                raise
            except MeshError:
                if self._clock.monotonic() >= until:
                    raise
            else:
                pull.stalled = False
                return chunk
            pull.stalled = True
            await asyncio.sleep(RETRY_PAUSE)

    async def _serve_open(self, peer: str, payload: bytes) -> bytes:
        request = json.loads(payload)
        gid = int(request["gid"])
        owner = self._owners.get(gid)
        if owner is None:
            raise MeshError(f"no replica of group {gid} here")
        # A peer that opens again has given up what it read before.
        self._drop(lambda export: export.gid == gid and export.peer == peer)
        self.tick()
        if self.exports >= MAX_OPEN_EXPORTS:
            raise MeshError("too many snapshots are being read here")
        if owner.state_index < int(request["index"]):
            raise MeshError(f"this replica stands at {owner.state_index}, before {request['index']}")
        cut = owner.snapshot_export(CHUNK_BYTES)
        export_id = self._rng.token(8).hex()
        self._exports[export_id] = _Export(gid, peer, cut.chunks, self._clock.monotonic(), cut.size, cut.messages)
        opened = {"id": export_id, "index": cut.index, "term": cut.term, "peers": cut.peers, "learners": cut.learners}
        return json.dumps(opened | {"size": cut.size, "messages": cut.messages}).encode()

    async def _serve_next(self, peer: str, payload: bytes) -> bytes:
        export_id, _, number = payload.decode().partition(" ")
        export = self._exports.get(export_id)
        if export is None or export.peer != peer:
            raise MeshError("no such snapshot (it may have been idle for too long)")
        export.used = self._clock.monotonic()
        if export.number and int(number) == export.number - 1:
            return export.last  # the answer was lost with its link
        if int(number) != export.number or export.ended:
            raise MeshError(f"chunk {number} is asked for, the next one is {export.number}")
        try:
            chunk = next(export.chunks, b"")
        except (DamagedError, KvError) as error:
            del self._exports[export_id]
            self._log.error("a snapshot cannot be read here", gid=export.gid, error=str(error) or repr(error))
            if isinstance(error, DamagedError) and export.gid in self._owners:
                self._owners[export.gid].export_failed(error)
            raise MeshError(f"the snapshot cannot be read: {error!r}") from error
        export.number += 1
        export.last = chunk
        export.sent += len(chunk)
        export.ended = not chunk
        return chunk

    def _drop(self, gone: Callable[[_Export], bool]) -> None:
        for export_id in [i for i, export in self._exports.items() if gone(export)]:
            del self._exports[export_id]


def _rest(messages: int, done: int, size: int) -> int:
    """Of `messages` in `size` bytes, when `done` bytes are done. Both sizes are near enough for a progress bar."""
    return messages - messages * min(done, size) // size if size else messages
