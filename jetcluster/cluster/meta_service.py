"""Requests to the meta leader: it fills in what needs its view (placement, time), proposes, tells the verdict.

The node that a client is connected to parses and validates; it sends the request here, to whichever node leads the meta
group. Everything is safe to send twice: a request carries its id, and the state machine remembers verdicts.

`RestoreWatch` has the restores that are going on, as the meta leader knows them, and gives up those that nobody goes on
with. A stream that is being restored is bound to the node that talks to the client. That node says so every few
seconds; when it dies, or forgets, the stream would keep its name and its subjects for ever and never become one. Only
the meta leader counts, and it counts anew with its term: a new leader waits the full time for everybody.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final

from jetcluster import errors
from jetcluster.clock import Clock
from jetcluster.cluster.requests import check_wanted
from jetcluster.errors import ApiError, by_code, invalid_config
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.placement import Candidate, ChosenPeers, PlacementRules, fits, place
from jetcluster.meta.state import Assignment
from jetcluster.model.subjects import Patterns
from jetcluster.stream.rules import RESTORING

Body = dict[str, Any]
Propose = Callable[[bytes], Awaitable[Body]]
"""Proposes a command to the meta group; the result of `MetaMachine.apply`. May raise RaftError and
OutcomeUnknownError: the request is then repeated, by its sender, wherever the leader is by now."""
Barrier = Callable[[], Awaitable[None]]
"""Returns once this node is proven to lead and has applied all that was committed before (RaftGroup.read_index)."""

MAX_PAGE = 1024
LOOKED = 1000
"""Subjects compared with that of a request before others have their turn."""
MAX_EFFORT = 1_000_000
"""Look-ups that comparing a stream's subjects with the others of its account may take, about 0.2 us each."""


class MetaService:
    """One per node; used while it leads."""

    def __init__(
        self,
        machine: MetaMachine,
        *,
        clock: Clock,
        propose: Propose,
        barrier: Barrier,
        online: Callable[[], Set[str]],
        well: Callable[[str], bool] = lambda peer: True,
        cluster_name: str = "",
        clustered: bool = True,
        leader: Callable[[int], str | None] = lambda gid: None,
        rules: Callable[[], PlacementRules] = PlacementRules,
    ) -> None:
        """`online` gives the peer ids reachable now, this node included; `well` those of them that are heard, and
        able. `clustered` False (a standalone server) refuses R > 1 with 10074. `leader` gives the peer that leads a
        group, as far as this node knows."""
        self._leader = leader
        self._rules = rules
        self._machine = machine
        self._clock = clock
        self._propose = propose
        self._barrier = barrier
        self._online = online
        self._well = well
        self._cluster_name = cluster_name
        self._clustered = clustered
        self._restores = RestoreWatch(clock)
        self._underway: Counter[str] = Counter()
        """Replicas placed but not applied yet: creates that come at once must not all pick the same nodes."""
        self._reserving: Counter[tuple[str, str]] = Counter()
        """Bytes that they lay claim to, by node and kind of storage."""
        self._leading: Counter[str] = Counter()

    async def handle(self, kind: str, body: Body) -> Body:
        """Answers one request; all values JSON-ready. Raises ApiError for a refusal. Nothing is proposed, and nothing
        told, by a leader that is not proven to lead: `barrier` comes first. So a majority that is gone does not leave
        a command in the log which comes true, after its asker was refused, when it is back.

        | kind | body | result |
        |---|---|---|
        | stream_create | request, account, config, limits, tier? | assignment, created, revision |
        | stream_update | request, account, config, limits, tier? | assignment, revision |
        | stream_delete | request, account, name, gid? | removed (gid), revision |
        | stream_restored | request, account, name, gid | assignment, revision |
        | stream_move_cancel | request, account, name, revision | assignment, revision |
        | stream_peer_remove | request, account, name, peer (name or id) | assignment, revision |
        | restore_alive | gid | {} |
        | node | request, peer, name, tags, jetstream | revision |
        | node_drain | request, peer, draining | revision |
        | node_remove | request, peer, name? | revision |
        | node_replace | request, peer, by | moved (streams), revision |
        | cluster | request, id | id, revision |
        | stream_rescue | request, account, name, gid, number, kept, peers | assignment, revision |
        | lookup | account, name | assignment |
        | names | account, offset, limit, subject | total, offset, names |
        | list | account, offset, limit, subject | total, offset, assignments |
        | usage | account | streams, reserved_memory, reserved_storage, tiers (by replicas) |
        """
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise by_code(errors.STREAM_GENERAL, err=f"unknown meta request {kind}")
        if kind != "restore_alive":
            await self._barrier()
        return await handler(self, body)

    async def _stream_create(self, body: Body) -> Body:
        account, config = body["account"], body["config"]
        self._check_clustered(config)
        self._check_effort(account, config)
        limits = self._limits(body)
        existing = self._machine.check_create(account, config, limits)
        # An equal stream answers also while no node has room for another one.
        placement = ChosenPeers(existing.peers, existing.leader_hint) if existing else self._place(config)
        with self._placing(placement, config):
            return await self._decide(
                {
                    "kind": "stream_create",
                    "request": body["request"],
                    "account": account,
                    "config": config,
                    "peers": list(placement.peers),
                    "leader": placement.leader,
                    "created": self._clock.time_ns(),
                    "limits": limits,
                }
            )

    async def _stream_update(self, body: Body) -> Body:
        self._check_clustered(body["config"])
        self._check_effort(body["account"], body["config"])
        keys = ("request", "account", "config")
        command = {"kind": "stream_update", **{key: body[key] for key in keys}, "limits": self._limits(body)}
        new = body["config"]
        old = self._machine.assignment(body["account"], new["name"])
        if old is not None and self._goes_elsewhere(old, new):
            # Both at once is refused in apply (10123).
            scaled = new["num_replicas"] != old.replicas
            command["peers"] = self._scaled(old, new["num_replicas"]) if scaled else self._moved(old, new)
            command |= {"from": list(old.peers), "at": self._clock.time_ns()}
        return await self._decide(command)

    def _limits(self, body: Body) -> dict[str, int]:
        """Those of the stream's tier, or while others here know no tiers, of all tiers together."""
        limits: dict[str, int] = body.get("tier") or body["limits"]
        return limits

    @staticmethod
    def _goes_elsewhere(old: Assignment, new: Mapping[str, Any]) -> bool:
        return new["num_replicas"] != old.replicas or new.get("placement") != old.config.get("placement")

    def _moved(self, old: Assignment, config: Mapping[str, Any]) -> list[str]:
        """The peers of `old` that a new placement allows, and others in the place of the rest."""
        if not self._clustered:
            return list(old.peers)
        wish = config.get("placement") or {}
        candidates = self._candidates()
        here = wish.get("cluster") in {None, "", self._cluster_name}
        fitting = {c.peer for c in candidates if here and fits(c, wish)}
        kept = [peer for peer in old.peers if peer in fitting]
        missing = len(old.peers) - len(kept)
        if not missing:
            return kept
        others = [c for c in candidates if c.peer not in kept]
        beside = [c for c in candidates if c.peer in kept]
        return [*kept, *self._choose(old, missing, others, wish, beside).peers]

    def _scaled(self, old: Assignment, replicas: int) -> list[str]:
        """The peers of `old` with so many replicas: who leads stays, then those that are online, then new ones."""
        online, leads = self._online(), self._leader(old.gid)
        leaving = {peer for peer, node in self._machine.nodes.items() if node.draining}
        ranked = sorted(
            old.peers,
            key=lambda p: (p in leaving, p != leads, p not in online, not self._well(p), p != old.leader_hint),
        )
        missing = replicas - len(old.peers)
        if missing <= 0:
            return ranked[:replicas]
        candidates = self._candidates()
        others = [c for c in candidates if c.peer not in old.peers]
        beside = [c for c in candidates if c.peer in old.peers]
        return [*old.peers, *self._choose(old, missing, others, old.config.get("placement"), beside).peers]

    def _choose(
        self,
        old: Assignment,
        count: int,
        others: Sequence[Candidate],
        wish: Mapping[str, Any] | None,
        beside: Sequence[Candidate],
    ) -> ChosenPeers:
        """Further peers of a stream that has some. Raises ApiError 10005."""
        return place(old.name, count, others, wish, self._cluster_name, rules=self._rules(), beside=beside)

    async def _stream_delete(self, body: Body) -> Body:
        keys = [key for key in ("request", "account", "name", "gid") if key in body]
        return await self._decide({"kind": "stream_delete", **{key: body[key] for key in keys}})

    async def _stream_restored(self, body: Body) -> Body:
        keys = ("request", "account", "name", "gid")
        return await self._decide({"kind": "stream_restored", **{key: body[key] for key in keys}})

    async def _stream_move_cancel(self, body: Body) -> Body:
        keys = ("request", "account", "name", "revision")
        return await self._decide({"kind": "stream_move_cancel", **{key: body[key] for key in keys}})

    async def _stream_peer_remove(self, body: Body) -> Body:
        """Another node in the place of one that is to hold no replica any more, there or gone."""
        old = self._machine.assignment(body["account"], body["name"])
        if old is None:
            raise by_code(errors.STREAM_NOT_FOUND)
        nodes, wanted = self._machine.nodes, body["peer"]
        removed = next((p for p in old.peers if wanted == p or (p in nodes and nodes[p].name == wanted)), None)
        if removed is None:
            raise by_code(errors.PEER_NOT_MEMBER)
        try:
            peers = self.peers_without(old, removed)
        except ApiError as error:
            raise by_code(errors.PEER_REMAP) from error
        return await self.set_peers(old, peers, body["request"])

    def peers_without(self, old: Assignment, removed: str) -> list[str]:
        """The stream's peers with another node in the place of `removed`. Raises ApiError 10005 where none fits, 10075
        where nobody is there who has the stream."""
        if not set(old.peers) & self._online():
            raise by_code(errors.PEER_REMAP)  # what only a node that is gone has, nobody can take over
        candidates = self._candidates()
        others = [c for c in candidates if c.peer not in old.peers]
        beside = [c for c in candidates if c.peer in old.peers and c.peer != removed]
        successor = self._choose(old, 1, others, old.config.get("placement"), beside).leader
        return [successor if peer == removed else peer for peer in old.peers]

    def added_peers(self, old: Assignment) -> list[str]:
        """The stream's peers and as many others as it lacks. Raises ApiError 10005."""
        return self._scaled(old, old.replicas)

    async def set_peers(self, old: Assignment, peers: Sequence[str], request: str) -> Body:
        """Void when the stream went elsewhere since `old` was looked at. Raises as `handle` does."""
        return await self._decide(
            {
                "kind": "stream_peers",
                "request": request,
                "account": old.account,
                "name": old.name,
                "gid": old.gid,
                "peers": list(peers),
                "from": list(old.peers),
            }
        )

    async def _restore_alive(self, body: Body) -> Body:
        self._restores.alive(int(body["gid"]))
        return {}

    async def give_up_restores(self, term: int, request: Callable[[], str]) -> list[Assignment]:
        """Deletes the streams whose restore nobody goes on with (`restores`); which ones. Raises as `handle` does."""
        gone = []
        for assignment in self._restores.overdue(self._machine.all_assignments(), term):
            body = {"account": assignment.account, "name": assignment.name, "gid": assignment.gid}
            await self._stream_delete({"request": request(), **body})
            gone.append(assignment)
        return gone

    async def _node(self, body: Body) -> Body:
        keys = [key for key in ("request", "peer", "name", "tags", "jetstream", "level", "key") if key in body]
        return await self._decide({"kind": "node", **{key: body[key] for key in keys}})

    async def _node_drain(self, body: Body) -> Body:
        return await self._decide({"kind": "node_drain", **{key: body[key] for key in ("request", "peer", "draining")}})

    async def _node_remove(self, body: Body) -> Body:
        keys = [key for key in ("request", "peer", "name") if key in body]
        return await self._decide({"kind": "node_remove", **{key: body[key] for key in keys}})

    async def _node_replace(self, body: Body) -> Body:
        return await self._decide({"kind": "node_replace", **{key: body[key] for key in ("request", "peer", "by")}})

    async def _cluster(self, body: Body) -> Body:
        return await self._decide({"kind": "cluster", **{key: body[key] for key in ("request", "id")}})

    async def _stream_rescue(self, body: Body) -> Body:
        keys = ("request", "account", "name", "gid", "number", "kept", "peers")
        return await self._decide({"kind": "stream_rescue", **{key: body[key] for key in keys}})

    async def _lookup(self, body: Body) -> Body:
        found = self._machine.assignment(body["account"], body["name"])
        if found is None:
            raise by_code(errors.STREAM_NOT_FOUND)
        return {"assignment": found.to_dict()}

    async def _names(self, body: Body) -> Body:
        total, offset, page = await self._page(body)
        return {"total": total, "offset": offset, "names": [a.name for a in page]}

    async def _list(self, body: Body) -> Body:
        total, offset, page = await self._page(body)
        return {"total": total, "offset": offset, "assignments": [a.to_dict() for a in page]}

    async def _usage(self, body: Body) -> Body:
        streams = self._machine.assignments(body["account"])
        reserved = {True: 0, False: 0}
        for stream in streams:
            # Once, however many replicas: as nats-server for accounts without tiers.
            reserved[stream.memory] += max(int(stream.config["max_bytes"]), 0)
        tiers: dict[str, Body] = {}
        for stream in streams:
            tier = tiers.setdefault(str(stream.replicas), {"streams": 0, "reserved_memory": 0, "reserved_storage": 0})
            tier["streams"] += 1
            tier["reserved_memory" if stream.memory else "reserved_storage"] += max(int(stream.config["max_bytes"]), 0)
        return {
            "tiers": tiers,
            "streams": len(streams),
            "reserved_memory": reserved[True],
            "reserved_storage": reserved[False],
        }

    async def _page(self, body: Body) -> tuple[int, int, list[Assignment]]:
        """Total, the offset in force, and at most `limit` assignments, sorted by name."""
        wanted = body["subject"]
        streams = self._machine.assignments(body["account"])
        if wanted:
            streams = [stream async for stream in _listening(streams, wanted)]
        offset = min(max(int(body["offset"]), 0), len(streams))
        limit = min(int(body["limit"]), MAX_PAGE)
        return len(streams), offset, streams[offset : offset + limit]

    def _check_clustered(self, config: Mapping[str, Any]) -> None:
        if not self._clustered and config["num_replicas"] > 1:
            raise by_code(errors.REPLICAS_NOT_SUPPORTED)

    def _check_effort(self, account: str, config: Mapping[str, Any]) -> None:
        """Bounds what apply has to compare, as it cannot stop in between."""
        if self._machine.overlap_effort(account, config.get("subjects", ())) > MAX_EFFORT:
            raise invalid_config("too many subjects for an account whose wildcards are at so many places")

    def _place(self, config: Mapping[str, Any]) -> ChosenPeers:
        # A standalone server ignores the placement, cluster and tags (nats-server 2.15, seen live).
        wish = config.get("placement") if self._clustered else None
        rules, claim, storage = self._rules(), 0, ""
        if self._clustered:  # else the account's limits are those of the one server
            claim, storage = max(int(config["max_bytes"]), 0), config["storage"]
        candidates, cluster = self._candidates(storage), self._cluster_name
        return place(config["name"], config["num_replicas"], candidates, wish, cluster, rules=rules, claim=claim)

    def _candidates(self, storage: str = "") -> list[Candidate]:
        """`storage`: the kind whose room matters, "" for none."""
        online, machine = self._online(), self._machine
        rules = self._rules()
        most = rules.max_ha_assets or sys.maxsize
        room = rules.max_memory if storage == "memory" else rules.max_storage
        return [
            Candidate(
                node.peer,
                node.tags,
                node.peer in online,
                self._well(node.peer),
                node.jetstream,
                machine.replicas_on(node.peer) + self._underway[node.peer],
                machine.leaders_on(node.peer),
                machine.replicated_on(node.peer) >= most > 0,
                room - machine.reserved_on(node.peer, storage) - self._reserving[node.peer, storage],
            )
            for node in machine.nodes.values()
            if not node.draining
        ]

    @contextmanager
    def _placing(self, placement: ChosenPeers, config: Mapping[str, Any]) -> Iterator[None]:
        claims = {(peer, config["storage"]): max(int(config["max_bytes"]), 0) for peer in placement.peers}
        self._reserving.update(claims)
        self._underway.update(placement.peers)
        self._leading[placement.leader] += 1
        try:
            yield
        finally:
            self._reserving.subtract(claims)
            self._underway.subtract(placement.peers)
            self._leading[placement.leader] -= 1

    async def _decide(self, command: Body) -> Body:
        check_wanted(self._clock)
        result = await self._propose(json.dumps(command, separators=(",", ":")).encode())
        error = result.get("error")
        if error is not None:
            raise ApiError.from_dict(error)
        return result


async def _listening(streams: Iterable[Assignment], wanted: str) -> AsyncIterator[Assignment]:
    """Those of the streams with a subject that overlaps with `wanted`. Others have their turns in between."""
    overlap = Patterns([wanted]).overlap
    looked = 0
    for stream in streams:
        own = stream.subjects  # none: a mirror, or fed by sources alone
        for start in range(0, len(own), LOOKED):
            some = own[start : start + LOOKED]
            looked += len(some)
            if looked >= LOOKED:
                looked = 0
                await asyncio.sleep(0)
            if any(map(overlap, some)):
                yield stream
                break


_HANDLERS: dict[str, Callable[[MetaService, Body], Awaitable[Body]]] = {
    "stream_create": MetaService._stream_create,
    "stream_update": MetaService._stream_update,
    "stream_delete": MetaService._stream_delete,
    "stream_restored": MetaService._stream_restored,
    "stream_move_cancel": MetaService._stream_move_cancel,
    "stream_peer_remove": MetaService._stream_peer_remove,
    "restore_alive": MetaService._restore_alive,
    "node": MetaService._node,
    "node_drain": MetaService._node_drain,
    "node_remove": MetaService._node_remove,
    "node_replace": MetaService._node_replace,
    "cluster": MetaService._cluster,
    "stream_rescue": MetaService._stream_rescue,
    "lookup": MetaService._lookup,
    "names": MetaService._names,
    "list": MetaService._list,
    "usage": MetaService._usage,
}

ALIVE_SECONDS: Final = 3.0
"""Seconds between two words of the receiving node that it goes on."""
SILENT_SECONDS: Final = 15.0
"""After so long without a word the stream is deleted."""


class RestoreWatch:
    """The words of the receiving nodes, by stream, with the monotonic time of the last one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[int, float] = {}
        self._term = 0

    def alive(self, gid: int) -> None:
        if gid in self._heard:
            self._heard[gid] = self._clock.monotonic()

    def overdue(self, assignments: Iterable[Assignment], term: int) -> list[Assignment]:
        """Those of all streams whose restore is to be given up. To be asked again and again while leading."""
        if term != self._term:
            self._term, self._heard = term, {}
        now = self._clock.monotonic()
        restoring = {a.gid: a for a in assignments if a.config.get(RESTORING)}
        self._heard = {gid: self._heard.get(gid, now) for gid in restoring}
        return [a for gid, a in restoring.items() if now - self._heard[gid] >= SILENT_SECONDS]
