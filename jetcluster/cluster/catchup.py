"""Bringing up a replica whose next log entry no peer's journal holds any more.

The replica pulls: it opens a snapshot at a peer, fetches chunks one at a time, each asked for when the last one is
stored, installs them, makes them durable, and only then tells its Raft group to continue after the snapshot's index.
The peer produces chunks lazily from its store and keeps serving; nothing on its side grows with the stream's size, and
Raft traffic on the same link waits for one chunk at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from jetcluster.clock import Clock, Rng
from jetcluster.cluster.mesh_api import Mesh, MeshError

MAX_OPEN_EXPORTS = 16
"""Per node; a peer beyond that is told to ask again."""

EXPORT_IDLE_SECONDS = 30.0
"""An export that nobody asked a chunk of for so long is dropped."""

CHUNK_TIMEOUT = 10.0
CHUNK_BYTES = 512 * 1024


@dataclass(slots=True, frozen=True)
class Cut:
    """One consistent state of a group: everything applied up to `index`, nothing after."""

    index: int
    term: int
    peers: tuple[str, ...]
    chunks: Iterator[bytes]


class SnapshotOwner(Protocol):
    """What a replica offers to, and takes from, its peers."""

    def snapshot_export(self, chunk_bytes: int) -> Cut: ...

    def snapshot_begin(self) -> None: ...

    def snapshot_chunk(self, chunk: bytes) -> None: ...

    async def snapshot_end(self, index: int, term: int, peers: tuple[str, ...]) -> None:
        """Makes the imported state durable and current, and continues the group after `index`."""
        ...


@dataclass(slots=True)
class _Export:
    chunks: Iterator[bytes]
    used: float


class CatchUp:
    """Serves this node's snapshots and pulls those of peers. One pull per group at a time."""

    def __init__(self, mesh: Mesh, clock: Clock, rng: Rng, owners: dict[int, SnapshotOwner]) -> None:
        self._mesh = mesh
        self._clock = clock
        self._rng = rng
        self._owners = owners
        self._exports: dict[str, _Export] = {}
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self.received: dict[int, int] = {}
        """Bytes received so far by the running pull of a group (for monitoring)."""
        mesh.serve("snapshot.open", self._serve_open)
        mesh.serve("snapshot.next", self._serve_next)

    def pull(self, gid: int, peer: str, index: int) -> None:
        """Starts to bring group `gid` to at least `index` from `peer`; does nothing while a pull is running."""
        if gid not in self._pulls:
            task = asyncio.get_running_loop().create_task(self._pull(gid, peer, index), name=f"catch-up {gid}")
            self._pulls[gid] = task
            task.add_done_callback(lambda _: self._pulls.pop(gid, None))

    def running(self, gid: int) -> bool:
        return gid in self._pulls

    async def stop(self) -> None:
        tasks = list(self._pulls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pull(self, gid: int, peer: str, index: int) -> None:
        owner = self._owners[gid]
        try:
            opened = json.loads(
                await self._mesh.call(peer, "snapshot.open", json.dumps({"gid": gid, "index": index}).encode())
            )
            owner.snapshot_begin()
            self.received[gid] = 0
            while chunk := await self._mesh.call(peer, "snapshot.next", opened["id"].encode(), CHUNK_TIMEOUT):
                owner.snapshot_chunk(chunk)
                self.received[gid] += len(chunk)
            await owner.snapshot_end(opened["index"], opened["term"], tuple(opened["peers"]))
        except MeshError:
            # The group asks again (`on_snapshot_needed`) as long as it cannot go on; a half import is marked as such
            # in the store and is never served.
            await asyncio.sleep(0.2)
        finally:
            self.received.pop(gid, None)

    async def _serve_open(self, peer: str, payload: bytes) -> bytes:
        request = json.loads(payload)
        owner = self._owners.get(int(request["gid"]))
        if owner is None:
            raise MeshError(f"no replica of group {request['gid']} here")
        self._drop_idle()
        if len(self._exports) >= MAX_OPEN_EXPORTS:
            raise MeshError("too many snapshots are being read here")
        cut = owner.snapshot_export(CHUNK_BYTES)
        if cut.index < int(request["index"]):
            raise MeshError(f"this replica stands at {cut.index}, before {request['index']}")
        export_id = self._rng.token(8).hex()
        self._exports[export_id] = _Export(cut.chunks, self._clock.monotonic())
        return json.dumps({"id": export_id, "index": cut.index, "term": cut.term, "peers": cut.peers}).encode()

    async def _serve_next(self, peer: str, payload: bytes) -> bytes:
        export = self._exports.get(payload.decode())
        if export is None:
            raise MeshError("no such snapshot (it may have been idle for too long)")
        export.used = self._clock.monotonic()
        chunk = next(export.chunks, b"")
        if not chunk:
            del self._exports[payload.decode()]
        return chunk

    def _drop_idle(self) -> None:
        limit = self._clock.monotonic() - EXPORT_IDLE_SECONDS
        for export_id in [i for i, export in self._exports.items() if export.used < limit]:
            del self._exports[export_id]
