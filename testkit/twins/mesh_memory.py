"""Test twin of the TCP mesh: nodes of one process, links that tests cut and heal, delivery by `Timers.call_soon`.

Runs `MeshCore` and the real frame codec; only sockets, handshake and keepalive are left out. With `ManualTime` as
timers a run is deterministic; `call` and `serve` need a running asyncio loop all the same (pass it as timers then).
"""

from __future__ import annotations

import logging

from jetcluster.clock import Clock, Rng, SystemClock, Timers
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import MAX_FRAME_BYTES, FrameError, FrameReader
from jetcluster.mesh.identity import new_id
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.protocol.connection_states import CLOSED, JOINED, ConnectionEvent
from testkit.twins.time import SeededRng


class MemoryNetwork:
    """Connects every pair of running meshes that is not cut."""

    def __init__(
        self, timers: Timers, *, clock: Clock | None = None, rng: Rng | None = None, max_frame: int = MAX_FRAME_BYTES
    ) -> None:
        self.timers = timers
        self.clock = clock or SystemClock()
        self.rng = rng or SeededRng(0)
        self.max_frame = max_frame
        self.meshes: dict[str, InMemoryMesh] = {}
        """Running meshes by peer id."""
        self._cut: set[frozenset[str]] = set()
        self._held: set[str] = set()
        self._waiting: list[MemoryLink] = []

    def mesh(
        self,
        name: str,
        peer_id: str | None = None,
        *,
        client_url: str = "",
        cluster_id: str = "",
        key: str = "",
        sync_interval: float | None = None,
    ) -> InMemoryMesh:
        """A mesh that is not started yet. The same `peer_id` again, after `stop`, is a restart of that node."""
        info = NodeInfo(
            peer_id=peer_id or new_id(self.rng),
            name=name,
            boot_id=new_id(self.rng),
            cluster_url="",
            client_url=client_url,
            cluster_id=cluster_id,
            key=key,
            sync_interval=sync_interval,
        )
        return InMemoryMesh(self, info)

    def cut(self, a: str, b: str) -> None:
        """Cuts a link: both sides are told at once that it is down, and frames under way are lost."""
        self._cut.add(frozenset((a, b)))
        self._disconnect(a, b)

    def heal(self, a: str, b: str) -> None:
        self._cut.discard(frozenset((a, b)))
        self.timers.call_soon(self._connect, a, b)

    def hold(self, peer_id: str) -> None:
        """Keeps all that goes to the node, and comes from it, until `release`, as while its process stands still.
        Nobody is told."""
        self._held.add(peer_id)

    def release(self) -> None:
        """All that waits arrives, in the order in which it was sent."""
        self._held.clear()
        waiting, self._waiting = self._waiting, []
        for link in waiting:
            link._deliver()

    def parks(self, link: MemoryLink) -> bool:
        """True for a link whose frames are kept for later."""
        if self._held.isdisjoint((link.peer_id, link.mesh.me.peer_id)):
            return False
        self._waiting.append(link)
        return True

    def isolate(self, peer_id: str) -> None:
        for other in [other for other in self.meshes if other != peer_id]:
            self.cut(peer_id, other)

    def heal_all(self) -> None:
        """Heals all links; also connects nodes that were cut off before they started."""
        self._cut.clear()
        peers = sorted(self.meshes)
        for number, a in enumerate(peers):
            for b in peers[number + 1 :]:
                self.timers.call_soon(self._connect, a, b)

    def _joined(self, mesh: InMemoryMesh) -> None:
        peer_id = mesh.me.peer_id
        assert peer_id not in self.meshes, "this node runs already"
        others = sorted(self.meshes)
        self.meshes[peer_id] = mesh
        for other in others:
            self.timers.call_soon(self._connect, peer_id, other)

    def _left(self, mesh: InMemoryMesh) -> None:
        peer_id = mesh.me.peer_id
        for other in sorted(mesh.links):
            self._disconnect(peer_id, other)
        self.meshes.pop(peer_id, None)

    def _connect(self, a: str, b: str) -> None:
        one, other = self.meshes.get(a), self.meshes.get(b)
        if one is None or other is None or frozenset((a, b)) in self._cut or b in one.links:
            return
        for here, there in ((one, b), (other, a)):
            if here.key_of(there) not in ("", self.meshes[there].me.key):
                here.counters.refused += 1
                return
            if text := here.left_out(there):
                here.counters.refused += 1
                self.meshes[there]._report_left_out(text)
                return
        if one.foreign(other.me):
            one.counters.refused += 1
            other.counters.refused += 1
            return
        near, far = MemoryLink(one, b), MemoryLink(other, a)
        near.other, far.other = far, near
        one._set_up(near, other.me)
        other._set_up(far, one.me)

    def _disconnect(self, a: str, b: str) -> None:
        mesh = self.meshes.get(a)
        link = mesh.links.get(b) if mesh is not None else None
        if link is not None:
            link.close("cut")


class MemoryLink(PeerLink):
    """One direction's sender; everything sent in one turn arrives as one read."""

    other: MemoryLink

    def __init__(self, core: InMemoryMesh, peer_id: str) -> None:
        super().__init__(core.max_frame, core.counters, core.traffic)
        self.mesh = core
        self.peer_id = peer_id
        self._reader = FrameReader(core.max_frame)
        self._queue: list[bytes] = []
        self._scheduled = False
        self.advance(ConnectionEvent.MAKE)
        self.advance(ConnectionEvent.CONNECT)

    def send(self, frame: bytes) -> None:
        if self.state is CLOSED:
            return
        if self._gathered:
            self._seal()
        self._expect(len(frame))
        self._queue_expected(frame)

    def accepts_msgs(self) -> bool:
        return self.state is not CLOSED

    def _expect(self, size: int) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.mesh.network.timers.call_soon(self._deliver)
        self.stats.out_bytes += size

    def _queue_expected(self, frame: bytes) -> None:
        self._queue.append(frame)

    def send_urgent(self, frame: bytes) -> bool:
        self.send(frame)
        return self.state is not CLOSED

    def close(self, reason: str, *, abort: bool = False) -> None:
        for link in (self, self.other):
            if not link.closed:
                link.advance(ConnectionEvent.CLOSE)
                link._queue.clear()
                link.mesh._set_down(link)

    def _deliver(self) -> None:
        if self.mesh.network.parks(self):
            return
        self._scheduled = False
        if self.state is CLOSED or self.other.state is not JOINED:
            return
        if self._gathered:
            self._seal()
        data = b"".join(self._queue)
        self._queue.clear()
        target = self.other
        target.stats.in_bytes += len(data)
        spans = target._reader.feed(data)
        assert target._reader.error is None, target._reader.error
        try:
            target.mesh._process(target, target._reader.buffer, spans)
        except FrameError as error:
            target.mesh.counters.malformed += 1
            target.close(str(error))


class InMemoryMesh(MeshCore):
    """Same API as `NodeMesh`; `start` and `stop` are synchronous inside, so `start_now` and `stop_now` exist too."""

    def __init__(self, network: MemoryNetwork, me: NodeInfo) -> None:
        super().__init__(me, network.clock, network.max_frame, logging.getLogger("jetcluster.mesh"))
        self.network = network

    def start_now(self) -> None:
        self.network._joined(self)

    def stop_now(self) -> None:
        self.network._left(self)

    async def start(self) -> None:
        self.start_now()

    async def stop(self) -> None:
        self.stop_now()
        await self._rpc.stop()

    @property
    def settled(self) -> bool:
        return all(
            other in self.links
            for other in self.network.meshes
            if other != self.me.peer_id and frozenset((other, self.me.peer_id)) not in self.network._cut
        )
