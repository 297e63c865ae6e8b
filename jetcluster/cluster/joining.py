"""Joining of a node to its cluster: it founds the meta group with other nodes, joins a running one, or continues.

`Roster` knows the cluster's members and their keys where this node's own log of the meta group lacks them. A node that
was away may meet a leader that joined meanwhile. Its log comes from that leader alone, so another server has to vouch
for the leader: each member that this node does know names the meta group's members and their keys, whenever a link
comes up or something changes. Strangers are not believed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from jetcluster.cluster.bootstrap import MAX_PEERS, Announcement, Bootstrap, Founding, Verdict
from jetcluster.cluster.cluster_id import ClusterId, founded
from jetcluster.cluster.meta_members import REMOVED, MetaMembers
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.errors import SERVER_NOT_MEMBER, by_code
from jetcluster.mesh.api import MeshError, MeshRefusedError, NodeInfo
from jetcluster.mesh.frames import FrameError
from jetcluster.model.machines import is_first
from jetcluster.ordered import OrderedSet
from jetcluster.raft.api import META_GROUP, RaftError
from jetcluster.raft.journal.log import JournalDamageError
from jetcluster.records import NamedTuple
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Network, Runtime

if TYPE_CHECKING:
    from jetcluster.mesh.core import MeshCore
    from jetcluster.meta.machine import MetaMachine
    from jetcluster.raft.journal.journal import Journal


MAX_LOOKED_BYTES = 1 << 20
MAX_LOOKED_ENTRIES = 1024
"""Entries of the log that are looked at for a peer's key."""


class Roster:
    """Members and keys, by this node's log and by announcements of its voters. One per node with JetStream."""

    def __init__(
        self, mesh: MeshCore, journal: Journal, machine: MetaMachine, on_member: Callable[[str], None]
    ) -> None:
        """`on_member` takes a linked peer that was a stranger when its link came up, and turns out to be a member."""
        self._mesh, self._journal, self._machine = mesh, journal, machine
        self._on_member = on_member
        self._told: dict[str, Announcement] = {}
        """By voter, its last announcement."""
        self._strangers: OrderedSet[str] = OrderedSet()
        mesh.on_peers(self._peer_up, self._peer_down)

    def vouched(self, peer: str) -> bool:
        """Returns True for a member whose configuration this node may lack (`raft.admission`)."""
        machine = self._machine
        if peer in machine.removed:
            return False
        if any(peer in told.meta_peers for told in self._told.values()):
            return True
        if self._members():
            return False
        return peer in machine.nodes or not machine.nodes  # the journal has lost its configuration

    def key_of(self, peer: str) -> str:
        """Returns the public key by which the cluster knows `peer`; "" when it knows none."""
        node = self._machine.nodes.get(peer)
        if node is not None and node.key:
            return node.key
        for told in self._told.values():
            for named, key in told.keys:
                if named == peer:
                    return key
        return ""

    def logged_key_of(self, peer: str) -> str:
        """Returns the key of `peer` in an entry that this node does not know to be committed, or "". A node writes down
        once a second what is committed, and those that go on without it tell it no more."""
        log = self._journal.groups.get(META_GROUP)
        first = 0 if log is None else max(self._machine.applied_index, log.base_index) + 1
        if log is None or first > log.last_index:
            return ""
        key = ""
        try:
            entries = log.slice(first, MAX_LOOKED_BYTES, MAX_LOOKED_ENTRIES)
        except JournalDamageError:
            return ""
        for command, _, _ in entries:
            try:
                entry = json.loads(command or b"0")
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("kind") == "node" and entry.get("peer") == peer:
                key = str(entry.get("key", ""))
        return key

    def keys(self) -> tuple[tuple[str, str], ...]:
        """Returns all keys that this node knows, by peer, for its announcement."""
        return tuple((peer, node.key) for peer, node in sorted(self._machine.nodes.items()) if node.key)

    def told(self, peer: str, announcement: Announcement) -> None:
        """Takes an announcement of `peer`; it counts when `peer` votes in the meta group by this node's own log. A log
        that is being filled from its beginning comes by configurations of servers that are all gone by now: until it
        has caught up, the voters with which this node joined count as well."""
        log = self._journal.groups.get(META_GROUP)
        voters = set(log.config.electorate) if log is not None else set()
        if log is not None and log.joining:
            voters |= {*log.configs[0][1].electorate, *self._told}
        for gone in [known for known in self._told if known not in voters]:
            del self._told[gone]
        if peer in voters:
            self._told[peer] = announcement
            self.look()
            if announcement.keys:
                self._mesh.check_keys()

    def look(self) -> None:
        """Reports strangers that turned out to be members; called a few times per second."""
        for peer in [peer for peer in self._strangers if self._mesh.members.is_member(peer)]:
            self._strangers.discard(peer)
            self._on_member(peer)

    def _members(self) -> frozenset[str]:
        """Members of the meta group by this node's log."""
        log = self._journal.groups.get(META_GROUP)
        return frozenset() if log is None else frozenset(log.config.members)

    def _peer_up(self, info: NodeInfo) -> None:
        if not self._mesh.members.is_member(info.peer_id):
            self._strangers.add(info.peer_id)

    def _peer_down(self, info: NodeInfo) -> None:
        self._strangers.discard(info.peer_id)


BOOT_NOTICE = "boot"
JOIN_METHOD = "meta.join"
JOIN_RETRY_SECONDS = 0.5
REFUSED_SECONDS = 5.0
"""A refusal that lasts is logged: another change of the members, or a new leader, is over sooner."""
ANNOUNCE_SECONDS = 0.02
ADVICE = (
    "all that it promised is void, and its streams are elsewhere. To have the machine in the cluster again stop the "
    "server, move the folder jetstream out of its store_dir and start it: it joins as a new member. What only this "
    "store has is still in it. With jetstream { set_aside_removed: true } the server does so by itself when it starts"
)


class _Refusal(NamedTuple):
    reason: str
    tell_at: float
    """Monotonic seconds; infinite once it was logged."""


class Joining:
    """The way of this node into the meta group."""

    def __init__(
        self, runtime: Runtime, network: Network, meta: MetaReplica, members: MetaMembers, cluster_id: ClusterId,
        background: Background, *, expected_nodes: Callable[[], int], settled: Callable[[], bool], roster: Roster,
        founding: Founding = Founding.TOGETHER, came_back: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`settled` returns whether each configured route led somewhere (see `bootstrap`). `came_back` is called when
        this server turns out to have been removed before it started."""
        self._came_back = came_back
        self._followed = False
        """True once this process was a member under a leader: it was removed while it ran, which is meant to stop."""
        self._founding = founding
        self._announcing = False
        self._roster = roster
        self.settled = settled
        self._runtime, self._network = runtime, network
        self._meta = meta
        self._members = members
        self._cluster_id = cluster_id
        self._background = background
        self._clustered = bool(network.cluster_name)
        self._expected_nodes = expected_nodes
        self._boot: Bootstrap | None = None
        self._joining: asyncio.Task[None] | None = None
        self._without: OrderedSet[str] = OrderedSet()
        """Linked peers whose meta group does without this node, by their last announcement."""
        self.removed = ""
        """Why this server is no longer a member, once the meta leader has reported it; else ""."""
        self._refused = _Refusal("", 0.0)
        """The leader's last reason not to admit this server."""
        network.mesh.serve(JOIN_METHOD, self._serve_join, strangers=True)
        network.mesh.on_notice(BOOT_NOTICE, self._on_announcement, strangers=True)

    def check_member(self) -> None:
        """Raises ApiError 10044 on a removed server, whose requests would only time out with 503."""
        if self.removed:
            raise by_code(SERVER_NOT_MEMBER)

    @property
    def looking(self) -> bool:
        """True until a cluster is found."""
        return self._boot is not None

    def start(self) -> None:
        """Continues from the store's state; a new node begins to look for its cluster."""
        me = self._network.me
        if self._network.raft.knows(META_GROUP):
            # A single server knows its members even where the journal has lost them; a member of a cluster asks.
            self._meta.start(() if self._clustered else (me,))
            assert self._meta.group is not None
            if self._clustered and me not in self._meta.group.members:
                self._start_to_join()  # the previous run ended before the node was admitted
        elif not self._clustered or self._founding is Founding.ALONE:
            self._meta.start((me,))
        else:
            self._boot = Bootstrap(me, self._expected_nodes(), self._runtime.clock.monotonic())
            self._boot.founding = self._founding
            self._boot.member_of = self._cluster_id.value
        if self._meta.machine.cluster_id:
            self._cluster_id.confirm(self._meta.machine.cluster_id)

    def tick(self) -> None:
        group = self._meta.group
        if group is not None and group.leader is not None and self._network.me in group.members:
            self._followed = True
        if self._boot is not None:
            self._look_for_cluster(self._boot)
        else:
            self._ask_again()

    def announce(self) -> None:
        """Tells all peers, where the word of this node counts: it is about to found a cluster, or votes."""
        group = self._meta.group
        if self._founding is not Founding.NEVER if group is None else self._network.me in group.peers:
            self._tell(None)

    def announce_soon(self) -> None:
        """Does so in a moment, once for all changes until then: each member of a large cluster is one."""
        if not self._announcing:
            self._announcing = True
            self._runtime.timers.call_later(ANNOUNCE_SECONDS, self._announce_now)

    def _announce_now(self) -> None:
        self._announcing = False
        self.announce()

    def _tell(self, peer: str | None) -> None:
        if self._clustered:
            self._network.mesh.notify(peer, BOOT_NOTICE, self._announcement().encode())

    def peer_up(self, info: NodeInfo) -> None:
        self._members.seen(info)
        if self._boot is not None:
            self.announce()
        self._tell(info.peer_id)

    def peer_down(self, info: NodeInfo) -> None:
        self._members.lost(info)
        self._without.discard(info.peer_id)
        if self._boot is not None:
            self._boot.forget(info.peer_id)
            self.announce()

    def _announcement(self) -> Announcement:
        """Leaves out nodes that found no cluster: they would never agree to a set of peers."""
        peers, group = self._network.mesh.peers, self._meta.group
        founders = (peer for peer, info in peers.items() if info.jetstream and is_first(info.tags))
        known = tuple(sorted({self._network.me, *founders}))
        meta = group.peers if group is not None else ()
        followers = () if group is None else tuple(sorted(group.members.difference(meta)))
        keys, wall_ns = self._roster.keys(), self._wall_ns
        return Announcement(known[:MAX_PEERS], self.settled(), meta, self._cluster_id.value, keys, wall_ns, followers)

    @property
    def _wall_ns(self) -> int:
        return self._network.raft.health.time.wall_ns

    def _on_announcement(self, peer: str, payload: bytes) -> None:
        try:
            announced = Announcement.decode(payload)
        except ValueError as error:
            raise FrameError(f"announcement: {error}") from error
        if self._boot is not None:
            self._boot.heard(peer, announced, self._wall_ns)
            return
        self._roster.told(peer, announced)
        if announced.meta_peers and self._network.me not in (*announced.meta_peers, *announced.followers):
            self._without.add(peer)
            self._ask_again()
        else:
            self._without.discard(peer)

    def _ask_again(self) -> None:
        """Asks to join where the cluster runs without this node, which was replaced while away and may not know it; and
        where it still hears the leader that left it out, once it hears it no more: nobody may announce that again."""
        group = self._meta.group
        left_out = self._without and group is not None and group.leader is None
        if left_out and self._clustered and self._joining is None:
            self._start_to_join()

    def _start_to_join(self) -> None:
        self._joining = self._background.spawn(self._join())
        self._joining.add_done_callback(lambda _: setattr(self, "_joining", None))

    def _look_for_cluster(self, boot: Bootstrap) -> None:
        self.announce()
        boot.expected = self._expected_nodes()
        now, mine = self._runtime.clock.monotonic(), self._announcement()
        verdict, peers, cluster_id = boot.decide(mine, now)
        if verdict is Verdict.WAIT:
            if complaint := boot.complaint(mine, now):
                self._runtime.log.warning(complaint)
            return
        self._boot = None
        # Before the first frame of the group: frames from another cluster must not reach it.
        if verdict is Verdict.CREATE:
            self._cluster_id.found(founded(self._network.cluster_name, peers))
        else:
            self._cluster_id.join(cluster_id)
        if verdict is Verdict.CREATE:
            voters = self._members.voters.first(peers)
            if self._network.me not in voters:
                self._runtime.log.info("JetStream cluster starts; this node follows", peers=len(peers))
                self._meta.start(voters)
                self._start_to_join()
                return
            peers = voters
        self._meta.start(peers)
        if verdict is Verdict.JOIN:
            self._runtime.log.info("JetStream joins the cluster", peers=len(peers))
            self._start_to_join()
        else:
            self._runtime.log.info("JetStream cluster starts", peers=len(peers))

    async def _join(self) -> None:
        """Asks the running cluster to admit this node, which follows as a learner, and may be promoted."""
        while True:
            group = self._meta.group
            assert group is not None
            if self._network.me in group.members and group.leader is not None:
                self.removed = ""
                return
            # All peers at once: a linked peer that does not answer must not delay the request to the leader.
            await asyncio.gather(*(self._ask(peer) for peer in self._network.mesh.peers))
            await asyncio.sleep(JOIN_RETRY_SECONDS)

    async def _ask(self, peer: str) -> None:
        try:
            await self._network.mesh.call(peer, JOIN_METHOD, self._network.me.encode(), 2.0)
        except MeshRefusedError as error:
            if REMOVED in str(error) and not self.removed:
                self.removed = REMOVED
                self._runtime.log.error(REMOVED, advice=ADVICE)  # noqa: TRY400
                if not self._followed:
                    self._came_back()
            elif REMOVED not in str(error):
                self._note_refusal(str(error))
        except MeshError:
            pass  # the next round asks again

    def _note_refusal(self, reason: str) -> None:
        now = self._runtime.clock.monotonic()
        if reason != self._refused.reason:
            self._refused = _Refusal(reason, now + REFUSED_SECONDS)
        elif now >= self._refused.tell_at:
            self._refused = _Refusal(reason, inf)
            self._runtime.log.warning("the cluster does not admit this server, which goes on asking", reason=reason)

    async def _serve_join(self, peer: str, payload: bytes) -> bytes:
        """Admits a node if this one leads the meta group; other nodes answer without effect."""
        try:
            self._members.asked(peer)
        except RaftError as error:
            raise MeshError(str(error)) from error
        return b""
