"""Administration of whole servers by the meta leader: stepping down, emptying a server, and removing one for good.

State that must outlive this leader is in the meta log: that a node must hold nothing (`Node.draining`), and that a node
was removed (`MetaMachine.removed`). `tend` works towards that state on whichever node leads, so an interrupted request
is finished all the same, and repeating it does no harm. Streams move as they do for any change of placement
(`members.follow_assignment`): the new replica first, one change at a time per group, a majority always caught up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetcluster.cluster.requests import REPEATED
from jetcluster.cluster.stepdown import hand_over
from jetcluster.cluster.stream_rescue import METHOD as STANDING_METHOD
from jetcluster.errors import MEMBER_CHANGE_REFUSED, SERVER_NOT_MEMBER, ApiError, by_code
from jetcluster.mesh.api import MeshError
from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import server_removed
from jetcluster.raft.api import META_GROUP, MembershipError, NotLeaderError, RaftGroup
from jetcluster.raft.rescue import ReplicaReport
from jetcluster.records import NamedTuple
from jetcluster.replica.members import carried_without, learners
from jetcluster.replica.services import Events, Knowledge, Network, Runtime

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.cluster.meta_service import MetaService
    from jetcluster.replica.stream_replica import StreamReplica

Body = dict[str, Any]
AskStream = Callable[[Assignment, str, Body], Awaitable[Body]]
HELD_METHOD = "node.held"
HELD_SECONDS: Final = 2.0
REMOVE_SECONDS: Final = 3.0
MOVES_AT_ONCE: Final = 4
"""Streams that move at the same time: each new replica is a copy over the network."""
STRAYS_AT_ONCE: Final = 16
"""Streams whose leaders are asked at the same time whether they may have them."""
PATIENCE_SECONDS: Final = 120.0
"""Time after which other streams move although a move is not complete, if its new server is gone or the stream has no
leader: it copies nothing, and may never."""
MAX_NAMED_STREAMS: Final = 3
"""Streams that a refusal names; the rest are counted."""


class HeldByServer(NamedTuple):
    """Counts of the replicas, leaderships and consumers that a server still has."""

    replicas: int
    leaders: int
    consumers: int


class _Move(NamedTuple):
    """A stream that moves."""

    assignment: Assignment
    """The one that it moves to."""
    since: float
    """Monotonic seconds."""
    before: tuple[str, ...]
    """Peers that had it."""


class Administration:
    """Handlers of the administration requests, and `tend`; they run on the meta leader."""

    def __init__(
        self,
        runtime: Runtime,
        network: Network,
        events: Events,
        meta: MetaReplica,
        service: MetaService,
        known: Knowledge,
        replicas: Mapping[int, StreamReplica],
        ask_stream: AskStream,
    ) -> None:
        self._known = known
        self._runtime, self._network = runtime, network
        self._meta = meta
        self._service = service
        self._replicas = replicas
        self._events = events
        self._ask_stream = ask_stream
        self._moving: dict[int, _Move] = {}
        self._stalled: dict[int, _Move] = {}
        """Moves that nobody carries out for long."""
        self._stuck: dict[int, str] = {}
        """By stream id, why the last attempt found no other place for it."""
        self._asked_up_to = 0
        """Id of the last stream that was asked whether its leader may have it."""
        self.handlers: dict[str, Callable[[Body], Awaitable[Body]]] = {
            "meta_stepdown": self._stepdown,
            "server_evacuate": self._evacuate,
            "server_remove": self._remove,
        }
        network.mesh.serve(HELD_METHOD, self._serve_held)

    # ---- requests; each raises ApiError, RaftError, OutcomeUnknownError

    async def _stepdown(self, body: Body) -> Body:
        """{"placement": {cluster, tags, preferred}} -> {}."""
        await self._hand_over(self._group(), body.get("placement") or {})
        return {}

    async def _evacuate(self, body: Body) -> Body:
        """{"request", "peer", "peer_id", "cancel": bool} -> the progress. The server gets no more replicas; its present
        ones move away, a few at a time. Raises ApiError when one finds no place, or the meta group needs the server."""
        group = self._group()
        peer = self._find(body)
        node = self._meta.machine.nodes.get(peer)
        if node is None:
            raise by_code(SERVER_NOT_MEMBER)
        cancel = bool(body.get("cancel"))
        if node.draining == cancel:
            if not cancel:
                self._check_majority(group, peer)
                self._check_places(peer)
            change = {"request": body["request"], "peer": peer, "draining": not cancel}
            await self._service.handle("node_drain", change)
            self._runtime.log.info("a server is drained" if not cancel else "a server is in use again", node=node.name)
        held = await self._held(peer)
        return {
            "name": node.name,
            "peer": peer,
            "online": self._online(peer),
            "draining": not cancel,
            "assigned": self._meta.machine.replicas_on(peer),
            "held": held._asdict() if held is not None else None,
            "meta_leader": peer == self._network.me,
            "stuck": [self._stuck[a.gid] for a in self._meta.machine.assigned_to(peer) if a.gid in self._stuck][
                :MAX_NAMED_STREAMS
            ],
            "meta": self._majority(group, peer)._asdict(),
        }

    async def _remove(self, body: Body) -> Body:
        """{"request", "peer", "peer_id"} -> {"name", "peer"}, once the meta group is without the server."""
        group = self._group()
        peer = self._find(body)
        name = self._name(peer)
        if peer in self._meta.machine.removed and peer not in group.peers and body.get(REPEATED):
            return {"name": name, "peer": peer}
        if peer == self._network.me:
            self._check_majority(group, peer)
            await self._hand_over(group, {})
            raise NotLeaderError(self._network.leaders.get(META_GROUP))
        self._check_majority(group, peer)
        if not self._online(peer):
            await self._take_back_moves(peer)
        with self._service.leaving.leaves(peer):
            await self._places_given(group)
            await self._check_empty(peer, name)
            await self._give_up_places(peer)
            if peer not in self._meta.machine.removed or peer in self._meta.machine.nodes:
                await self._service.handle("node_remove", {"request": body["request"], "peer": peer, "name": name})
        end = self._runtime.clock.monotonic() + REMOVE_SECONDS
        while peer in group.members_at(group.commit_index).electorate or peer in learners(group):
            if self._runtime.clock.monotonic() >= end:
                raise by_code(10202)  # `tend` finishes it
            self._drop_members(group)
            await asyncio.sleep(0.02)
        return {"name": name, "peer": peer}

    # ---- all the time

    def occupied(self) -> bool:
        """Returns True while streams move, or a server is to be emptied."""
        return bool(self._moving) or any(node.draining for node in self._meta.machine.nodes.values())

    async def tend(self) -> None:
        """Continues drains, removals and moves; called a few times per second. Raises as the requests do."""
        group = self._group()
        self._drop_members(group)
        draining = [node.peer for node in self._meta.machine.nodes.values() if node.draining]
        if self._network.me in draining and len(group.peers) > 1:
            group.transfer()  # the next leader continues
            return
        await self._forget_finished_moves()
        for peer in draining:
            for assignment in self._meta.machine.assigned_to(peer):
                if len(self._moving) >= MOVES_AT_ONCE:
                    return
                if assignment.gid not in self._moving:
                    await self._move(assignment, partial(self._service.peers_without, removed=peer))
        strays = []
        for assignment in self._meta.machine.misplaced:
            if len(self._moving) >= MOVES_AT_ONCE:
                return
            unknown = [peer for peer in assignment.peers if peer not in self._meta.machine.nodes]
            if 0 < len(unknown) < len(assignment.peers):
                # Removed or replaced while the stream moved away from it, and the move was cancelled then.
                await self._move(assignment, partial(self._peers_left, gone=unknown[0]))
            elif len(assignment.peers) < assignment.replicas:
                await self._move(assignment, self._service.added_peers)
            elif self._network.leaders.get(assignment.gid) is not None:
                strays.append(assignment)
        await self._assign_to_leaders(strays)

    async def _assign_to_leaders(self, strays: list[Assignment]) -> None:
        """Assigns streams to the server that leads them when none of their assigned servers will come back: such a one
        was scaled down to a leader that was lost, or moved. Without a leader the assignment stays: only those servers
        had the data. Leaders may be silent, so a few are asked side by side, and the next ones at the next call."""
        strays.sort(key=lambda one: (one.gid <= self._asked_up_to, one.gid))
        del strays[STRAYS_AT_ONCE:]
        if not strays:
            return
        self._asked_up_to = strays[-1].gid
        for assignment, members in zip(strays, await asyncio.gather(*map(self._members, strays)), strict=True):
            leader = self._network.leaders.get(assignment.gid)
            if leader is None or members is None or leader not in members["voters"]:
                continue
            if len(self._moving) < MOVES_AT_ONCE:
                await self._move(assignment, partial(_only, leader))

    async def _members(self, assignment: Assignment) -> Body | None:
        """Returns what the stream's leader answers, or None."""
        try:
            async with asyncio.timeout(HELD_SECONDS):
                return await self._ask_stream(assignment, "members", {})
        except (ApiError, TimeoutError):
            return None

    async def _move(self, assignment: Assignment, peers: Callable[[Assignment], list[str]]) -> None:
        try:
            wanted = peers(assignment)
        except ApiError as error:
            self._stuck[assignment.gid] = f"{assignment.name}: {error.description}"
            return
        self._stuck.pop(assignment.gid, None)
        result = await self._service.set_peers(assignment, wanted, self._runtime.rng.token(8).hex())
        moved = Assignment.from_dict(result["assignment"])
        self._moving[assignment.gid] = _Move(moved, self._runtime.clock.monotonic(), assignment.peers)

    async def _forget_finished_moves(self) -> None:
        """Forgets moves that are complete, that a newer assignment replaced, or that nobody carries out for long."""
        by_gid = self._meta.machine.by_gid
        self._stuck = {gid: why for gid, why in self._stuck.items() if by_gid(gid) is not None}
        self._stalled = {gid: move for gid, move in self._stalled.items() if by_gid(gid) == move.assignment}

        async def over(move: _Move) -> bool:
            assignment = move.assignment
            if by_gid(assignment.gid) != assignment:
                return True
            late = self._runtime.clock.monotonic() - move.since >= PATIENCE_SECONDS
            members = await self._members(assignment)
            if members is None:
                if late:
                    self._stalled[assignment.gid] = move
                return late
            missing = set(assignment.peers).difference(members["voters"])
            if late and not all(map(self._online, missing)):
                return True
            changing = members["outgoing"] or members["learners"]
            return set(members["voters"]) == set(assignment.peers) and not changing

        moves = list(self._moving.items())
        found = await asyncio.gather(*[over(move) for _, move in moves])
        for (gid, _), is_over in zip(moves, found, strict=True):
            if is_over:
                self._moving.pop(gid, None)

    def _drop_members(self, group: RaftGroup) -> None:
        """Takes removed servers out of the meta group, one at a time, while the remaining voters have a majority."""
        removed = self._meta.machine.removed
        for peer in (*learners(group), *group.peers):
            if peer not in removed or peer == self._network.me:
                continue
            if peer in group.peers and not self._majority(group, peer).enough:
                continue
            try:
                group.remove_peer(peer)
            except (MembershipError, NotLeaderError):
                return  # the previous change is under way
            self._runtime.log.warning("a server is removed from the cluster", node=removed[peer], peer=peer)
            self._events.tell(
                self._events.system_account, server_removed(removed[peer], peer, self._network.cluster_name)
            )
            return

    # ---- checks

    def _check_majority(self, group: RaftGroup, peer: str) -> None:
        if peer not in group.peers:
            return
        left = self._majority(group, peer)
        if not left.enough:
            raise _refused(
                f"without {self._name(peer)} the meta group would have {left.voters} voters, {left.current} of them "
                f"connected and caught up, and needs {left.needed}"
            )

    @staticmethod
    def _majority(group: RaftGroup, peer: str) -> Majority:
        rest, carried = carried_without(group, peer)
        return Majority(len(rest), len(carried), len(rest) // 2 + 1)

    def _check_places(self, peer: str) -> None:
        """Raises ApiError unless each stream with a replica on `peer` has another place for it."""
        homeless = []
        for assignment in self._meta.machine.assigned_to(peer):
            try:
                self._service.peers_without(assignment, peer)
            except ApiError as error:
                homeless.append(f"{assignment.name} (R{assignment.replicas}): {error.description}")
        if homeless:
            raise _refused(
                f"{len(homeless)} streams find no other place for their replica on {self._name(peer)}, so they would "
                f"lose it: {_some(homeless)}"
            )

    async def _places_given(self, group: RaftGroup) -> None:
        """Waits until the table has all places that were given away so far. Raises ApiError where that takes long,
        and NotLeaderError."""
        last, end = group.last_index, self._runtime.clock.monotonic() + REMOVE_SECONDS
        while group.applied_index < last:
            self._group()  # whoever leads now is asked
            if self._runtime.clock.monotonic() >= end:
                raise by_code(10202)
            await asyncio.sleep(0.02)

    async def _check_empty(self, peer: str, name: str) -> None:
        """Raises ApiError for a connected server that holds anything: once removed, it could neither follow the new
        assignments nor hand over data that only it has."""
        if not self._online(peer):
            return
        held = await self._held(peer)
        if held is None:
            raise _refused(f"{name} is connected, but does not say what it holds")
        assigned = [a.name for a in self._meta.machine.assigned_to(peer)]
        if held.replicas or assigned:
            raise _refused(
                f"{name} is connected and holds {held.replicas} stream replicas ({held.leaders} leaders, "
                f"{held.consumers} consumers), {len(assigned)} of them assigned: decommission it, or stop it first"
            )

    async def _take_back_moves(self, peer: str) -> None:
        """Assigns streams to a server that is gone again when only it had them, and their moves were under way: the
        servers that they were to move to have nothing, and would wait for ever."""
        moves = [one for one in (*self._moving.values(), *self._stalled.values()) if one.before == (peer,)]
        answers = await asyncio.gather(*(self._is_blank(one.assignment) for one in moves))
        for move, is_blank in zip(moves, answers, strict=True):
            if is_blank and self._meta.machine.by_gid(move.assignment.gid) == move.assignment:
                await self._service.set_peers(move.assignment, move.before, self._runtime.rng.token(8).hex())

    async def _is_blank(self, assignment: Assignment) -> bool:
        """Returns True when all of a stream's servers say that they have nothing of it."""
        for peer in assignment.peers:
            try:
                answer = await self._network.mesh.call(peer, STANDING_METHOD, b"%d" % assignment.gid, HELD_SECONDS)
                said = json.loads(answer)
                if said is not None and ReplicaReport.from_dict(said).last_index:
                    return False
            except (MeshError, ValueError, KeyError, TypeError):
                return False
        return True

    async def _give_up_places(self, peer: str) -> None:
        """Reassigns the streams of a server that is gone; without another server they continue with fewer replicas. A
        stream that only this server has stays assigned to it: an empty stream would hide the loss."""
        for assignment in self._meta.machine.assigned_to(peer):
            if peers := self._peers_left(assignment, peer):
                await self._service.set_peers(assignment, peers, self._runtime.rng.token(8).hex())

    def _peers_left(self, assignment: Assignment, gone: str) -> list[str]:
        """Returns the stream's peers with another one in place of `gone`, or without it where there is no place."""
        try:
            return self._service.peers_without(assignment, gone)
        except ApiError:
            return [peer for peer in assignment.peers if peer != gone]

    # ---- what servers hold

    async def _held(self, peer: str) -> HeldByServer | None:
        """Returns what `peer` holds, or None when it does not answer."""
        try:
            answer = await self._network.mesh.call(peer, HELD_METHOD, b"", HELD_SECONDS)
            return HeldByServer(**json.loads(answer))
        except (MeshError, ValueError, TypeError):
            return None

    async def _serve_held(self, peer: str, payload: bytes) -> bytes:
        # A stream that was placed here shortly before a restart begins once the meta log tells of it again: until then
        # this server seems to have nothing, and would be removed together with what only it has.
        if not self._known.current:
            raise MeshError("the server does not know yet what it holds")
        replicas = self._replicas.values()
        held = HeldByServer(
            len(replicas), sum(1 for r in replicas if r.leading), sum(r.consumers.owns for r in replicas if r.sound)
        )
        return json.dumps(held._asdict()).encode()

    # ---- helpers

    async def _hand_over(self, group: RaftGroup, placement: Mapping[str, Any]) -> None:
        await hand_over(self._network, self._meta.machine.nodes, group, META_GROUP, placement)

    def _group(self) -> RaftGroup:
        group = self._meta.group
        if group is None or not self._meta.leading:
            raise NotLeaderError(group.leader if group is not None else None)
        return group

    def _find(self, body: Body) -> str:
        """Returns a server's peer id by `peer_id`, or by name or id in `peer`; of two with the same name, the
        disconnected one. Raises ApiError 10044."""
        known = {peer: node.name for peer, node in self._meta.machine.nodes.items()}
        known |= {peer: self._name(peer) for peer in self._group().peers if peer not in known}
        if body.get(REPEATED):
            known = {**self._meta.machine.removed, **known}
        wanted = body.get("peer_id") or ""
        if wanted:
            found = [peer for peer in known if peer == wanted]
        else:
            wanted = body.get("peer") or ""
            found = [peer for peer, name in known.items() if wanted in (name, peer)]
        if not found or not wanted:
            raise by_code(SERVER_NOT_MEMBER)
        return min(found, key=self._online)

    def _name(self, peer: str) -> str:
        machine = self._meta.machine
        node, link = machine.nodes.get(peer), self._network.mesh.peers.get(peer)
        return node.name if node is not None else machine.removed.get(peer) or (link.name if link is not None else peer)

    def _online(self, peer: str) -> bool:
        return peer == self._network.me or peer in self._network.mesh.peers


class Majority(NamedTuple):
    """Voters of the meta group without one server."""

    voters: int
    current: int
    """Voters that are connected and caught up."""
    needed: int

    @property
    def enough(self) -> bool:
        return self.current >= self.needed


def _only(peer: str, _: Assignment) -> list[str]:
    return [peer]


def _some(texts: list[str]) -> str:
    more = len(texts) - MAX_NAMED_STREAMS
    return "; ".join(texts[:MAX_NAMED_STREAMS]) + (f"; and {more} more" if more > 0 else "")


def _refused(text: str) -> ApiError:
    return by_code(MEMBER_CHANGE_REFUSED, err=text)
