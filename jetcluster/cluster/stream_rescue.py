"""Streams without a majority, of which one replica was made the whole group offline (`jetcluster rescue`).

Such a replica has a configuration of its own in its journal (`raft.rescue`). It is not started before the meta group
confirms it: there may be unknown replicas on other nodes that lead, or were rescued too. The meta leader asks all nodes
that it can reach, and registers the first rescued replica without an objection. From then on, by the meta log, every
other earlier replica is no part of the stream: its node gives it up with its data, and gets the present stream if it is
assigned. A node that was away does so when its meta replica is current, and takes no messages before; the rescued group
ignores its frames meanwhile (`Assignment.fenced`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from jetcluster.errors import MEMBER_CHANGE_REFUSED, STREAM_NOT_FOUND, ApiError, by_code
from jetcluster.mesh.api import MeshError
from jetcluster.meta.state import Assignment
from jetcluster.raft.api import NotLeaderError
from jetcluster.raft.rescue import ReplicaReport, standing, standing_of
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Knowledge, Network, Runtime

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.cluster.meta_service import MetaService

Body = dict[str, Any]
KIND: Final = "stream_rescue"
METHOD: Final = "group.standing"
ASK_SECONDS: Final = 2.0
ELECTION_SECONDS: Final = 1.5
"""Time in which a majority that has just come back elects a leader."""
RETRY_SECONDS: Final = 5.0
"""Time between two requests after a refusal: the stream's leader elsewhere may disappear too."""


class StreamRescues:
    """Rescued replicas that wait here, and their registration by the meta leader. One per node."""

    def __init__(
        self, runtime: Runtime, network: Network, known: Knowledge, meta: MetaReplica, service: MetaService,
        ask_meta: Callable[[str, Body], Awaitable[Body]], background: Background,
        broken: dict[int, tuple[Assignment, str]],
    ) -> None:  # fmt: skip
        """Waiting streams are listed in `broken`, with the reason."""
        self._broken = broken
        self._runtime, self._network, self._known = runtime, network, known
        self._meta = meta
        self._service = service
        self._ask_meta = ask_meta
        self._background = background
        self._waiting: dict[int, Assignment] = {}
        self._try_at: dict[int, float] = {}
        self._asking: set[int] = set()
        self.handlers: dict[str, Callable[[Body], Awaitable[Body]]] = {KIND: self._register}
        network.mesh.serve(METHOD, self._serve_standing)

    # ---- on the node that has such a replica

    def holds(self, assignment: Assignment) -> bool:
        """Returns True when this node's replica must wait for registration, and then waits for a meta leader."""
        gid = assignment.gid
        forced = self._network.raft.forced(gid)
        if not forced or (forced, self._network.me) == (assignment.rescue, assignment.kept):
            self.forget(gid)
            return False
        if gid not in self._waiting:
            self._broken[gid] = assignment, "its rescued replica waits for the meta group"
        self._waiting[gid] = assignment
        return True

    def forget(self, gid: int) -> None:
        if self._waiting.pop(gid, None) is not None:
            self._broken.pop(gid, None)
        self._try_at.pop(gid, None)

    def outdated(self, assignment: Assignment) -> bool:
        """Returns True when this node's replica is older than the rescue in the meta log."""
        raft, gid = self._network.raft, assignment.gid
        return raft.knows(gid) and raft.rescues(gid) < assignment.rescue

    def tick(self) -> None:
        now = self._runtime.clock.monotonic()
        for gid, assignment in list(self._waiting.items()):
            if gid not in self._asking and now >= self._try_at.get(gid, 0.0) and self._known.current:
                self._asking.add(gid)
                self._background.spawn(self._ask(assignment))

    async def _ask(self, assignment: Assignment) -> None:
        gid = assignment.gid
        body = {
            "request": f"stream-rescue-{gid}-{self._network.me}-{self._runtime.rng.token(4).hex()}",
            "account": assignment.account,
            "name": assignment.name,
            "gid": gid,
            "number": self._network.raft.forced(gid),
            "kept": self._network.me,
        }
        try:
            await self._ask_meta(KIND, body)
            self._runtime.log.info(
                "the rescued replica of a stream is in use", stream=f"{assignment.account}/{assignment.name}"
            )
        except ApiError as error:
            if error.retriable:
                return
            self._try_at[gid] = self._runtime.clock.monotonic() + RETRY_SECONDS
            why = assignment, error.description
            if gid in self._waiting and self._broken.get(gid) != why:
                self._broken[gid] = why
                self._runtime.log.warning(
                    "the rescued replica of a stream is not used, its data stays as it is",
                    stream=f"{assignment.account}/{assignment.name}", reason=error.description,
                )  # fmt: skip
        finally:
            self._asking.discard(gid)

    async def _serve_standing(self, peer: str, payload: bytes) -> bytes:
        gid, raft = int(json.loads(payload)), self._network.raft
        group, log = raft.groups.get(gid), raft.journal.groups.get(gid)
        if group is not None:
            return json.dumps(standing(group).to_dict()).encode()
        if log is None:
            return b"null"
        # The replica exists all the same, and votes as soon as it is started.
        _, why = self._broken.get(gid, (None, ""))
        return json.dumps(standing_of(log, self._network.me, why).to_dict()).encode()

    # ---- on the meta leader

    async def _register(self, body: Body) -> Body:
        """{"request", "account", "name", "gid", "number", "kept"} -> {"assignment", ...}. Raises ApiError."""
        if not self._meta.leading:
            raise NotLeaderError(None)
        old = self._meta.machine.assignment(body["account"], body["name"])
        kept = str(body["kept"])
        if old is None or old.gid != int(body["gid"]):
            raise by_code(STREAM_NOT_FOUND)
        if kept not in self._meta.machine.nodes:
            raise _refused("its server is not a member of the cluster")
        connected = {self._network.me, *self._network.mesh.peers}
        others = [peer for peer in old.peers if peer != kept and peer in connected]
        if old.rescue < int(body["number"]):
            await self._check_stuck(old, kept, others)
        draining = {node.peer for node in self._meta.machine.nodes.values() if node.draining}
        peers = [peer for peer in others if peer not in draining][: old.replicas - 1]
        result = await self._service.handle(KIND, {**body, "peers": peers})
        self._runtime.log.warning(
            "a stream goes on with one replica that was rescued", stream=f"{old.account}/{old.name}",
            server=self._name(kept), number=body["number"], given_up=[self._name(p) for p in old.peers if p != kept],
        )  # fmt: skip
        return result

    async def _check_stuck(self, old: Assignment, kept: str, others: list[str]) -> None:
        """Raises ApiError when the stream has a leader, or when a connected majority may elect one."""
        end = self._runtime.clock.monotonic() + ELECTION_SECONDS
        while True:
            found = dict(zip(others, await asyncio.gather(*(self._standing(p, old.gid) for p in others)), strict=True))
            if silent := [self._name(peer) for peer, said in found.items() if said is None]:
                raise _refused(f"{', '.join(silent)} is connected and does not say how its replica stands")
            known = [said for said in found.values() if isinstance(said, ReplicaReport)]
            led = [said for said in known if said.leader not in (None, kept)]
            if led:
                raise _refused(f"{old.name} is led by {self._name(str(led[0].leader))}: nothing is to be rescued")
            if self._runtime.clock.monotonic() >= end:
                break
            await asyncio.sleep(0.2)
        # An empty replica in place of a lost one is no voter by its own knowledge.
        voting = [said for said in known if said.sound and said.votes]
        for said in voting:
            sound = [other.peer for other in voting if said.config.has_vote(other.peer)]
            if said.config.is_quorum(sound):
                names = ", ".join(map(self._name, sound))
                raise _refused(f"a majority of its replicas is whole and connected ({names})")

    async def _standing(self, peer: str, gid: int) -> ReplicaReport | bool | None:
        """Returns the report of `peer`; True when it has no such replica, None when it does not answer."""
        try:
            data = json.loads(await self._network.mesh.call(peer, METHOD, b"%d" % gid, ASK_SECONDS))
            return True if data is None else ReplicaReport.from_dict(data)
        except (MeshError, ValueError, KeyError, TypeError):
            return None

    def _name(self, peer: str) -> str:
        node = self._meta.machine.nodes.get(peer)
        return node.name if node is not None else peer


def _refused(why: str) -> ApiError:
    return by_code(MEMBER_CHANGE_REFUSED, err=f"the rescued replica is not used: {why}")
