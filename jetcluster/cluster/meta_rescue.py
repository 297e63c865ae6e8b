"""`$JS.API.META.RESCUE`: the meta group continues with the remaining voters when its majority will not come back.

Subject, request and answers are nats-server's (ADR-61): `quorum_needed` is the number of voters left by the operator's
account, and every server answers for itself. The effect differs: each nats-server counts fewer votes for five minutes.
Here the survivors together get another configuration for good (`raft.rescue`), and Raft and the mesh refuse the servers
left out from then on, however many of them come back (docs/membership/rescue.md).

The server that is asked does it: it queries all connected servers, refuses unless all agree that the group is stuck,
takes their promises, and makes the one with the most advanced log force the configuration. It answers when a majority
of them has it on disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jetcluster.cluster.flusher import Flusher
from jetcluster.errors import RESCUE_REFUSED, ApiError, by_code
from jetcluster.mesh.api import MeshError
from jetcluster.meta.state import Rescue
from jetcluster.model.advisory import meta_rescue
from jetcluster.model.times import rfc3339
from jetcluster.raft import rescue as raft
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.rescue import ReplicaReport, RescueError
from jetcluster.records import NamedTuple
from jetcluster.replica.services import Events, Network, Runtime

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.raft.core.group import Group

Body = dict[str, Any]
METHOD: Final = "meta.rescue"
LOOK_SECONDS: Final = 1.0
STEP_SECONDS: Final = 4.0
POLL_SECONDS: Final = 0.005
LEADERLESS_SECONDS: Final = 5.0
"""Time without a leader that each survivor must report: an election under way is no reason for a rescue."""


class SurvivorView(NamedTuple):
    """The report of one connected server."""

    name: str
    server_id: str
    standing: ReplicaReport | None
    """State of its replica of the meta group, if any."""
    links: frozenset[str]
    leaderless: float
    """Seconds since it last knew a leader."""


class RescuePlan(NamedTuple):
    """The new configuration, and the server that forces it."""

    winner: str
    term: int
    before: tuple[str, ...]
    """Voters of the configuration that has lost its majority."""
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    survivors: tuple[str, ...]
    place: tuple[int, int]

    @property
    def quorum_before(self) -> int:
        return len(self.before) // 2 + 1

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


class MetaRescue:
    """Both sides of a rescue: the server that is asked, and the survivors. `tick` runs a few times per second."""

    def __init__(self, runtime: Runtime, network: Network, events: Events, meta: MetaReplica, flusher: Flusher) -> None:
        """`flusher` makes the meta state durable, so that servers left out are refused from the first link on."""
        self._flusher = flusher
        self._runtime, self._network, self._events = runtime, network, events
        self._meta = meta
        self._led_at = runtime.clock.monotonic()
        self._steps = {"look": self._look, "promise": self._promise, "force": self._force}
        network.mesh.serve(METHOD, self._serve)

    def start(self) -> None:
        """Enforces the earlier rescues of the stored meta state from the first link on."""
        self._fence()

    def tick(self) -> None:
        group = self._meta.group
        if group is None or group.leader is not None:
            self._led_at = self._runtime.clock.monotonic()

    def applied(self, rescue: Rescue) -> None:
        """Takes a rescue that the meta log records."""
        self._runtime.log.warning(
            "the meta group was rescued: it goes on with the servers that were left; the others must not come back "
            "with their stores",
            number=rescue.number, at=rfc3339(rescue.at_ns), by=rescue.by,
            survivors=sorted(rescue.survivors.values()), left_out=sorted(rescue.lost.values()),
        )  # fmt: skip
        self._fence()
        self._flusher.soon = True

    def _fence(self) -> None:
        out = self._meta.machine.left_out
        self._network.mesh.leave_out({peer: (rescue.at_ns, rescue.told(peer)) for peer, rescue in out.items()})
        if self._meta.group is not None:
            self._meta.group.fence(tuple(out))

    # ---- the server that is asked

    async def rescue(self, quorum: int | ApiError, by: str) -> list[Body]:
        """Rescues the group; `quorum` servers are left by the account of `by`. Returns an answer per connected server
        with JetStream, this server's first: `server`, `server_id`, and `prev_quorum` and `new_quorum` or `error`. An
        error instead of a quorum is the answer of each of them. Never raises."""
        if isinstance(quorum, ApiError):
            return self._answers({}, error=quorum)
        views: dict[str, SurvivorView] = {}
        try:
            views, silent = await self._look_around()
            plan = plan_of(views, silent, quorum)
            await self._carry_out(plan, views, by)
        except (RescueError, MeshError) as error:
            self._runtime.log.warning("the meta group is not rescued", by=by, reason=str(error))
            return self._answers(views, error=by_code(RESCUE_REFUSED, err=str(error)))
        for peer in plan.survivors:
            view = views[peer]
            event = meta_rescue(
                view.name, view.server_id, plan.quorum_before, plan.quorum, self._network.cluster_name,
                [self._name(lost) for lost in plan.before if lost not in plan.survivors],
            )  # fmt: skip
            self._events.tell(self._events.system_account, event)
        return self._answers(views, plan=plan)

    def _answers(
        self, views: Mapping[str, SurvivorView], error: ApiError | None = None, plan: RescuePlan | None = None
    ) -> list[Body]:
        mesh = self._network.mesh
        answers = []
        for info in (mesh.me, *mesh.peers.values()):
            if not info.jetstream:
                continue
            answer: Body = {}
            if error is not None:
                answer["error"] = error.to_dict()
            elif plan is not None and info.peer_id not in plan.survivors:
                answer["error"] = by_code(RESCUE_REFUSED, err=raft.NOT_VOTING).to_dict()
            answer |= {"server": info.name, "server_id": info.server_id}
            if plan is not None and "error" not in answer:
                answer |= {"prev_quorum": plan.quorum_before, "new_quorum": plan.quorum}
            answers.append(answer)
        return answers

    async def _look_around(self) -> tuple[dict[str, SurvivorView], set[str]]:
        """Returns the views of the connected servers by peer id, and the servers that do not answer."""
        mesh = self._network.mesh
        peers = [info.peer_id for info in (mesh.me, *mesh.peers.values()) if info.jetstream]

        async def ask(peer: str) -> SurvivorView | None:
            try:
                data = await self._call(peer, {"step": "look"}, LOOK_SECONDS)
                found = data["standing"]
                return SurvivorView(
                    str(data["name"]), str(data["server_id"]), ReplicaReport.from_dict(found) if found else None,
                    frozenset(data["links"]), float(data["leaderless"]),
                )  # fmt: skip
            except (MeshError, RescueError, ValueError, KeyError, TypeError):
                return None

        views = dict(zip(peers, await asyncio.gather(*map(ask, peers)), strict=True))
        return {p: v for p, v in views.items() if v is not None}, {p for p, v in views.items() if v is None}

    async def _carry_out(self, plan: RescuePlan, views: Mapping[str, SurvivorView], by: str) -> None:
        promise = {"step": "promise", "term": plan.term, "candidate": plan.winner}
        await asyncio.gather(*(self._call(peer, promise, STEP_SECONDS) for peer in plan.survivors))
        lost = [peer for peer in plan.before if peer not in plan.survivors]
        winner = views[plan.winner].standing
        assert winner is not None
        rescue = Rescue(
            winner.rescue + 1, self._runtime.clock.time_ns(), by,
            {peer: views[peer].name for peer in plan.survivors}, {peer: self._name(peer) for peer in lost},
        )  # fmt: skip
        await self._call(
            plan.winner,
            {
                "step": "force",
                "term": plan.term,
                "voters": plan.voters,
                "learners": plan.learners,
                "place": plan.place,
                "rescue": rescue.to_dict(),
            },
            STEP_SECONDS * 2,
        )

    async def _call(self, peer: str, body: Body, seconds: float) -> Body:
        """Raises MeshError, or RescueError when the peer refuses."""
        answer: Body = json.loads(
            await self._network.mesh.call(peer, METHOD, json.dumps(body, separators=(",", ":")).encode(), seconds)
        )
        if "refused" in answer:
            raise RescueError(f"{self._name(peer)}: {answer['refused']}")
        return answer

    def _name(self, peer: str) -> str:
        machine, link = self._meta.machine, self._network.mesh.peers.get(peer)
        if peer == self._network.me:
            return self._network.name
        node = machine.nodes.get(peer)
        return node.name if node is not None else link.name if link is not None else machine.removed.get(peer, peer)

    # ---- every server

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        body = json.loads(payload)
        try:
            if peer == self._network.me or self._network.raft.admission.is_voter(peer):
                answer = await self._steps[body["step"]](body)
            else:
                answer = {"refused": "only a voter of the meta group may rescue it"}
        except RescueError as error:
            answer = {"refused": str(error)}
        return json.dumps(answer, separators=(",", ":")).encode()

    async def _look(self, body: Body) -> Body:
        group = self._group_or_none()
        return {
            "name": self._network.name,
            "server_id": self._network.mesh.me.server_id,
            "standing": raft.standing(group).to_dict() if group is not None else None,
            "links": list(self._network.mesh.peers),
            "leaderless": self._runtime.clock.monotonic() - self._led_at,
        }

    async def _promise(self, body: Body) -> Body:
        group, term, candidate = self._group(), int(body["term"]), str(body["candidate"])
        raft.promise(group, term, candidate)
        while not raft.promised(group, term, candidate):
            if group.term != term or group.log.voted_for != candidate:
                raise RescueError(f"term {term} is over")
            await asyncio.sleep(POLL_SECONDS)
        return {}

    async def _force(self, body: Body) -> Body:
        """Forces the configuration; answers once a majority of the survivors has it."""
        group, rescue = self._group(), Rescue.from_dict(body["rescue"])
        command = {"kind": "rescue", "request": f"rescue-{rescue.number}", "rescue": rescue.to_dict()}
        last_term, last_index = body["place"]
        index = raft.force(
            group, int(body["term"]), tuple(body["voters"]), tuple(body["learners"]), (last_term, last_index),
            json.dumps(command, separators=(",", ":")).encode(),
        )  # fmt: skip
        self._runtime.log.warning("a new configuration is forced upon the meta group", voters=body["voters"])
        end = self._runtime.clock.monotonic() + STEP_SECONDS
        while self._meta.machine.applied_index < index:
            if group.log.last_index < index:
                raise RescueError("another leader was elected meanwhile")
            if self._runtime.clock.monotonic() >= end:
                raise RescueError(
                    f"{self._network.name} has the new configuration on its disk, but no majority of the survivors "
                    "has confirmed it yet"
                )
            await asyncio.sleep(POLL_SECONDS)
        return {}

    def _group_or_none(self) -> Group | None:
        return self._network.raft.groups.get(META_GROUP)

    def _group(self) -> Group:
        group = self._group_or_none()
        if group is None:
            raise RescueError("no meta group runs here")
        return group


def plan_of(views: Mapping[str, SurvivorView], silent: set[str], quorum: int) -> RescuePlan:
    """Returns the plan. Raises RescueError where the group is not stuck, or not as the operator believes it is."""
    standings = {peer: view.standing for peer, view in views.items() if view.standing is not None}
    voting = {peer: s for peer, s in standings.items() if s.votes}
    if not voting:
        raise RescueError(raft.NOT_VOTING)
    # The most advanced log wins; of equal ones a sound one, and always the same.
    winner = max(voting, key=lambda peer: (voting[peer].place, voting[peer].sound, peer))
    best = voting[winner]
    before = best.config.electorate
    needed = len(before) // 2 + 1
    if not 1 <= quorum <= needed:
        raise RescueError(raft.BAD_QUORUM)
    if any(s.leader is not None for s in standings.values()):
        raise RescueError(raft.LEADER_KNOWN)
    survivors = tuple(peer for peer in before if peer in voting)
    _check_stuck(views, voting, silent, survivors, best)
    if not best.last_index:
        raise RescueError(raft.EMPTY_LOG)
    voters = tuple(peer for peer in survivors if voting[peer].sound or peer == winner)
    learners = tuple(peer for peer in survivors if peer not in voters) + best.learners
    names = ", ".join(sorted(views[peer].name for peer in survivors))
    if quorum > len(survivors):
        raise RescueError(f"of the voters {len(survivors)} are left ({names}), not {quorum}")
    if 2 * quorum <= len(voters):
        raise RescueError(
            f"{len(survivors)} voters are left ({names}): with a quorum of {quorum} two of them could lead at once, "
            f"ask for {len(survivors)}"
        )
    term = max(s.term for s in voting.values()) + raft.TERM_STEP
    return RescuePlan(winner, term, before, voters, learners, survivors, best.place)


def _check_stuck(
    views: Mapping[str, SurvivorView], voting: Mapping[str, ReplicaReport], silent: set[str],
    survivors: tuple[str, ...], best: ReplicaReport,
) -> None:  # fmt: skip
    """Raises RescueError unless the voters connected to any survivor are no majority, and have no leader."""
    if unheard := [peer for peer in best.config.electorate if peer in silent]:
        raise RescueError(f"{', '.join(unheard)} is connected and does not answer: it may be alive")
    for peer in survivors:
        view, others = views[peer], set(survivors) - {peer}
        if elsewhere := [p for p in best.config.electorate if p in view.links and p not in views]:
            raise RescueError(f"{view.name} is connected with voter {', '.join(elsewhere)}: ask that server")
        if apart := others - view.links:
            raise RescueError(f"{view.name} is not connected with {', '.join(views[p].name for p in sorted(apart))}")
        if stopped := voting[peer].stopped:
            raise RescueError(f"the meta replica of {view.name} has stopped ({stopped}): start that server again")
        if view.leaderless < LEADERLESS_SECONDS:
            raise RescueError(f"a leader was known to {view.name} {view.leaderless:.1f} s ago: wait for an election")
    sound = [peer for peer in survivors if voting[peer].sound]
    if best.config.is_quorum(sound):
        raise RescueError(
            f"{len(sound)} of {len(best.config.electorate)} voters are connected, which is a majority: they elect a "
            "leader by themselves"
        )
