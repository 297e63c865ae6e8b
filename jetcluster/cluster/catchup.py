"""Bringing up a replica whose next log entry no peer's journal holds any more.

The replica pulls: it opens a snapshot at a peer, fetches chunks one at a time, each asked for when the last one is
stored, installs them, makes them durable, and only then tells its Raft group to continue after the snapshot's index.
The peer produces chunks lazily from its store and keeps serving; nothing on its side grows with the stream's size, and
Raft traffic on the same link waits for one chunk at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jetcluster.clock import Clock, Rng
from jetcluster.cluster.mesh_api import Mesh, MeshError, NodeInfo
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError

if TYPE_CHECKING:
    from jetcluster.cluster.context import Log

MAX_OPEN_EXPORTS = 16
"""Per node; a peer beyond that is told to ask again."""

EXPORT_IDLE_SECONDS = 30.0
"""An export that nobody asked a chunk of for so long is dropped."""

CHUNK_TIMEOUT = 10.0
RETRY_PAUSE = 0.2
"""After a pull that failed; the Raft group asks again anyway as long as it needs the state."""
CHUNK_BYTES = 512 * 1024


@dataclass(slots=True, frozen=True)
class Cut:
    """One consistent state of a group: everything applied up to `index`, nothing after."""

    index: int
    term: int
    peers: tuple[str, ...]
    """The voters as of `index`, not as of now: a newer configuration may never be committed."""
    chunks: Iterator[bytes]
    learners: tuple[str, ...] = ()


class SnapshotOwner(Protocol):
    """What a replica offers to, and takes from, its peers."""

    @property
    def state_index(self) -> int:
        """The last command that the own state holds: nothing older is taken."""
        ...

    def snapshot_export(self, chunk_bytes: int) -> Cut:
        """Raises MeshError when this replica has no state that others should build upon, and KvError."""
        ...

    def snapshot_begin(self) -> None:
        """Gives up the own state; nothing is applied from here on until `snapshot_end`."""
        ...

    def snapshot_chunk(self, chunk: bytes) -> None: ...

    async def snapshot_end(self, index: int, term: int, peers: tuple[str, ...], learners: tuple[str, ...] = ()) -> None:
        """Makes the imported state durable and current, and continues the group after `index`."""
        ...


@dataclass(slots=True)
class _Export:
    gid: int
    peer: str
    chunks: Iterator[bytes]
    used: float


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
        self.received: dict[int, int] = {}
        """Bytes received so far by the running pull of a group (for monitoring)."""
        mesh.serve("snapshot.open", self._serve_open)
        mesh.serve("snapshot.next", self._serve_next)
        mesh.on_peers(lambda info: None, self._peer_down)

    def pull(self, gid: int, peer: str, index: int) -> None:
        """Starts to bring group `gid` to at least `index` from `peer`; does nothing while a pull is running."""
        if gid not in self._pulls and not self._stopped:
            task = asyncio.get_running_loop().create_task(self._pull(gid, peer, index), name=f"catch-up {gid}")
            self._pulls[gid] = task
            task.add_done_callback(lambda _: self._pulls.pop(gid, None))

    def running(self, gid: int) -> bool:
        return gid in self._pulls

    @property
    def exports(self) -> int:
        """Snapshots being read here (for monitoring); each pins a view of the data store."""
        return len(self._exports)

    def forget(self, gid: int) -> None:
        """The replica goes away: its pull ends before it takes another step, nobody reads its state any more."""
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
            self.received.pop(gid, None)

    async def _fetch(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> None:
        wanted = max(index, owner.state_index)
        request = json.dumps({"gid": gid, "index": wanted}).encode()
        opened = json.loads(await self._mesh.call(peer, "snapshot.open", request))
        if opened["index"] < owner.state_index:
            raise MeshError("the log was faster")
        owner.snapshot_begin()
        self.received[gid] = 0
        while chunk := await self._mesh.call(peer, "snapshot.next", opened["id"].encode(), CHUNK_TIMEOUT):
            owner.snapshot_chunk(chunk)
            self.received[gid] += len(chunk)
        peers, learners = tuple(opened["peers"]), tuple(opened.get("learners", ()))
        await owner.snapshot_end(opened["index"], opened["term"], peers, learners)
        self._log.info("caught up from a snapshot", gid=gid, peer=peer, index=opened["index"])

    async def _serve_open(self, peer: str, payload: bytes) -> bytes:
        request = json.loads(payload)
        gid = int(request["gid"])
        owner = self._owners.get(gid)
        if owner is None:
            raise MeshError(f"no replica of group {gid} here")
        # A peer that opens again has given up what it read before.
        self._drop(lambda export: export.gid == gid and export.peer == peer)
        self.tick()
        if len(self._exports) >= MAX_OPEN_EXPORTS:
            raise MeshError("too many snapshots are being read here")
        if owner.state_index < int(request["index"]):
            raise MeshError(f"this replica stands at {owner.state_index}, before {request['index']}")
        cut = owner.snapshot_export(CHUNK_BYTES)
        export_id = self._rng.token(8).hex()
        self._exports[export_id] = _Export(gid, peer, cut.chunks, self._clock.monotonic())
        opened = {"id": export_id, "index": cut.index, "term": cut.term, "peers": cut.peers, "learners": cut.learners}
        return json.dumps(opened).encode()

    async def _serve_next(self, peer: str, payload: bytes) -> bytes:
        export_id = payload.decode()
        export = self._exports.get(export_id)
        if export is None or export.peer != peer:
            raise MeshError("no such snapshot (it may have been idle for too long)")
        export.used = self._clock.monotonic()
        try:
            chunk = next(export.chunks, b"")
        except (DamagedError, KvError) as error:
            del self._exports[export_id]
            self._log.error("a snapshot cannot be read here", gid=export.gid, error=str(error) or repr(error))
            raise MeshError(f"the snapshot cannot be read: {error!r}") from error
        if not chunk:
            del self._exports[export_id]
        return chunk

    def _peer_down(self, info: NodeInfo) -> None:
        self._drop(lambda export: export.peer == info.peer_id)

    def _drop(self, gone: Callable[[_Export], bool]) -> None:
        for export_id in [i for i, export in self._exports.items() if gone(export)]:
            del self._exports[export_id]
