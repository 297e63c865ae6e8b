"""Replicas that continue alone, once every other node has reported that it has nothing of the stream (`raft.rescue`).

The journal of such a replica has lost entries, and by the rest no other node ever had a vote. This node asks all nodes
of the cluster, because it does not know the members; nodes removed from the cluster never come back. An answer counts
when its node has applied the assignment that this node goes by, and so cannot begin a replica by an older one. While a
node is silent the replica waits: others may lead the stream, and heal this replica then.

A stream is founded in the same way when no replica was begun before its assignment changed: its present peers are not
the ones whose votes would count if a replica had been begun.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jetcluster.mesh.api import MeshError
from jetcluster.meta.state import Assignment
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Knowledge, Network, Runtime

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.raft.journal.log import GroupLog
    from jetcluster.replica.stream_replica import StreamReplica

METHOD: Final = "stream.rest"
ASK_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 1.0


class LoneReplicas:
    """The replicas of this node that wait for such answers; `tick` runs a few times per second. One per node."""

    def __init__(
        self,
        runtime: Runtime,
        network: Network,
        known: Knowledge,
        meta: MetaReplica,
        replicas: Mapping[int, StreamReplica],
        background: Background,
    ) -> None:
        self._runtime, self._network, self._known = runtime, network, known
        self._meta = meta
        self._replicas = replicas
        self._background = background
        self._waiting: dict[int, str] = {}
        """By group, the reason to wait that was logged last."""
        self._try_at: dict[int, float] = {}
        network.mesh.serve(METHOD, self._serve)

    def watch(self, gid: int) -> None:
        """Takes a group whose replica was begun here."""
        if self._waits(gid):
            self._waiting.setdefault(gid, "")

    def _waits(self, gid: int) -> bool:
        raft = self._network.raft
        return raft.is_damaged(gid) or raft.is_unfounded(gid)

    def _asks(self, replica: StreamReplica) -> bool:
        """True when only the word of all others helps. While others vote by the rest of the log it is healed by them,
        unless they have left a stream that is to be here alone: then nobody else has it."""
        raft, gid = self._network.raft, replica.assignment.gid
        return raft.in_doubt(gid, alone=self._is_alone(replica.assignment)) or raft.is_unfounded(gid)

    def _is_alone(self, assignment: Assignment) -> bool:
        return assignment.peers == (self._network.me,)

    def tick(self) -> None:
        if not self._waiting or not self._known.current:
            return
        now = self._runtime.clock.monotonic()
        for gid in list(self._waiting):
            replica = self._replicas.get(gid)
            if replica is None or not self._waits(gid):
                self._waiting.pop(gid)
                self._try_at.pop(gid, None)
            elif now >= self._try_at.get(gid, 0.0) and replica.group.leader is None and self._asks(replica):
                self._try_at[gid] = now + ASK_SECONDS + RETRY_SECONDS
                self._background.spawn(self._ask(replica))

    async def _ask(self, replica: StreamReplica) -> None:
        assignment = replica.assignment
        gid, log = assignment.gid, self._network.raft.journal.groups[assignment.gid]
        others = self._others(assignment)
        answers = await asyncio.gather(*(self._answer_of(peer, assignment) for peer in others))
        if self._replicas.get(gid) is not replica or replica.assignment.revision != assignment.revision:
            return
        end = max(log.last_index, replica.machine.applied_index)
        founds = self._network.raft.is_unfounded(gid)
        objections = [
            f"{self._name(peer)} {why}"
            for peer, said in zip(others, answers, strict=True)
            if (why := _begun(said) if founds else _objection(said, self._network.me, assignment.rescue, end))
        ]
        if founds and (removed := self._meta.machine.removed):
            # An empty stream would hide the loss.
            objections.append(f"{', '.join(sorted(removed.values()))} may have had it, and was removed")
        if not objections and not founds:
            self._network.raft.go_on_alone(gid, alone=self._is_alone(assignment))
            return
        if not objections:
            if self._network.me in assignment.founders:
                self._network.raft.found(gid, assignment.founders)
            return
        self._try_at[gid] = self._runtime.clock.monotonic() + RETRY_SECONDS
        text = ", ".join(objections)
        if self._waiting.get(gid, text) != text:
            self._waiting[gid] = text
            what = "never had anything" if founds else "has lost something of the journal"
            self._runtime.log.warning(
                f"a replica that {what} waits for those who may have the stream",
                stream=f"{assignment.account}/{assignment.name}", reason=text,
            )  # fmt: skip

    def _others(self, assignment: Assignment) -> list[str]:
        machine = self._meta.machine
        nodes = {peer for peer, node in machine.nodes.items() if node.jetstream}
        return sorted({*nodes, *assignment.peers}.difference(machine.removed, [self._network.me]))

    async def _answer_of(self, peer: str, assignment: Assignment) -> dict[str, Any] | None:
        """Returns the answer of `peer`; None when it has no answer that counts."""
        payload = json.dumps({"gid": assignment.gid, "revision": assignment.revision}).encode()
        try:
            said = json.loads(await self._network.mesh.call(peer, METHOD, payload, ASK_SECONDS))
            return said if isinstance(said, dict) and said["current"] is True else None
        except (MeshError, ValueError, KeyError, RecursionError):
            return None

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        try:
            asked = json.loads(payload)
            gid, revision = int(asked["gid"]), int(asked["revision"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MeshError(f"malformed question: {error!r}") from error
        current = self._known.current and self._meta.machine.applied_index >= revision
        journal = self._network.raft.journal
        log = journal.groups.get(gid)
        begun = not (journal.never_had(gid) if log is None else log.joining or self._network.raft.is_unfounded(gid))
        account = _account_of(log) if log is not None else None
        return json.dumps({"current": current, "begun": begun or bool(log and log.last_index), "log": account}).encode()

    def _name(self, peer: str) -> str:
        node = self._meta.machine.nodes.get(peer)
        return node.name if node is not None else peer


def _account_of(log: GroupLog) -> dict[str, Any]:
    return {
        "voters": log.config.electorate,
        "hearsay": log.joining and not log.config_index,
        "last_index": log.last_index,
        "damaged": log.damaged and not log.joining,
        "rescue": log.rescues,
    }


def _begun(said: dict[str, Any] | None) -> str:
    """Returns the reason why this answer forbids founding the stream; "" when it does not."""
    if said is None:
        return "does not say whether it has a replica"
    return "has had a replica" if said.get("begun") is not False else ""


def _objection(said: dict[str, Any] | None, me: str, rescue: int, end: int) -> str:
    """Returns the reason why this answer forbids `me`, whose log and state end at `end`, to continue alone; or ""."""
    if said is None:
        return "does not say whether it has a replica"
    log = said.get("log")
    if log is None:
        return ""
    try:
        if log["rescue"] < rescue:
            return ""  # by the meta log it is no longer a part of the stream
        if log["damaged"]:
            return "has a replica, whose journal is damaged, too"
        if log["last_index"] > end:
            return "has more of the stream"
        # A replica that is being added knows the members by the assignment only, while its log is empty.
        return "" if log["hearsay"] or set(log["voters"]) <= {me} else "has a replica that votes"
    except (KeyError, TypeError):
        return "has a replica, and does not say which"
