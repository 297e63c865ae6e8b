"""Requests to the meta leader, which fills in what needs its view (placement, time), proposes, and answers.

The node that a client is connected to parses and validates, and sends the request to whichever node leads the meta
group. Each request is safe to repeat: it carries an id, and the state machine remembers verdicts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from jetcluster import errors
from jetcluster.clock import Clock
from jetcluster.cluster.leaving import Leaving
from jetcluster.cluster.requests import LIST_BYTES, LIST_STEP_BYTES, check_wanted
from jetcluster.cluster.stream_limits import check_room, check_tier, limits_of
from jetcluster.errors import ApiError, by_code, invalid_config
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.placement import Candidate, ChosenPeers, PlacementRules, fits, place
from jetcluster.meta.state import Assignment
from jetcluster.model import link_rules, retention_guard
from jetcluster.model.subjects import Patterns
from jetcluster.stream.log.levels import LEVEL, RETENTION_GUARD_LEVEL

if TYPE_CHECKING:
    from jetcluster.cluster.refusals import Refusals
    from jetcluster.cluster.restore_watch import RestoreWatch
    from jetcluster.logs import Log

Body = dict[str, Any]
Propose = Callable[[bytes], Awaitable[Body]]
"""Proposes a command to the meta group; returns the result of `MetaMachine.apply`. May raise RaftError and
OutcomeUnknownError: the sender of the request then repeats it at the present leader."""
Barrier = Callable[[], Awaitable[None]]
"""Returns once this node is proven to lead and has applied all earlier commits (RaftGroup.read_index)."""

EXPLAINED: Final = frozenset({errors.NO_SUITABLE_PEERS, errors.REPLICAS_NOT_SUPPORTED, 10028, 10047})
"""Refusals whose text does not say the arithmetic (`cluster.refusals`)."""
MAX_PAGE = 1024
SUBJECTS_PER_SLICE = 1000
"""Subjects compared before the loop yields."""
MAX_LOOKUPS = 1_000_000
"""Most look-ups for comparing a stream's subjects with the others of its account, about 0.2 us each."""


class MetaService:
    """Handlers of the meta leader's requests. One per node."""

    def __init__(
        self, machine: MetaMachine, *, clock: Clock, propose: Propose, barrier: Barrier, online: Callable[[], Set[str]],
        well: Callable[[str], bool] = lambda peer: True, cluster_name: str = "", clustered: bool = True,
        leader: Callable[[int], str | None] = lambda gid: None, rules: Callable[[], PlacementRules] = PlacementRules,
        level: Callable[[str], int] = lambda peer: LEVEL, log: Log | None = None,
    ) -> None:  # fmt: skip
        """`online` returns the peer ids reachable now, this node included; `well` is True for healthy ones. `clustered`
        False (a standalone server) refuses R > 1 with 10074. `leader` returns a group's known leader,
        `level` what a node understands (`stream.log.levels`). With a `log` the reasons of refusals are noted."""
        self._log = log
        self.refusals: Refusals | None = None
        """None before the first refusal."""
        self._leader = leader
        self._level = level
        self._rules = rules
        self._machine = machine
        self._clock = clock
        self._propose = propose
        self._barrier = barrier
        self._online = online
        self._well = well
        self._cluster_name = cluster_name
        self._clustered = clustered
        self._watch: RestoreWatch | None = None
        self.leaving = Leaving()
        self._underway: Counter[str] = Counter()
        """By peer, replicas placed but not applied yet: concurrent creates must not all pick the same nodes."""
        self._reserving: Counter[tuple[str, str]] = Counter()
        """By peer and kind of storage, the bytes that those replicas claim."""
        self._leading: Counter[str] = Counter()
        self._updating: Counter[tuple[str, str, str]] = Counter()
        """By account, name and what they change (`config`; `placement` also), updates of a stream that are not decided
        yet."""
        self._linking: dict[tuple[str, str], Mapping[str, Any]] = {}
        """By account and name, configurations with links that are not decided yet."""

    async def handle(self, kind: str, body: Body) -> Body:
        """Answers one request; all values are JSON-ready. Raises ApiError for a refusal. `barrier` comes first: the
        command of a leader without a majority might come true once that is back, after its asker was refused.

        | kind | body | result |
        |---|---|---|
        | stream_create | request, account, config, limits, tier? | assignment, created, revision |
        | stream_update | request, account, config, limits, tier? | assignment, revision |
        | stream_delete | request, account, name, gid? | removed (gid), revision |
        | stream_restored | request, account, name, gid | assignment, revision |
        | stream_move_cancel | request, account, name, revision | assignment, revision |
        | stream_stay | request, account, name, revision, peers (from before), limits?, tier? | assignment, revision |
        | stream_peer_remove | request, account, name, peer (name or id) | assignment, revision |
        | stream_leave | request, account, name, server ("": any), cluster ("": any), tags | assignment, revision |
        | restore_alive | gid | {} |
        | node | request, peer, name, tags, jetstream | revision |
        | node_drain | request, peer, draining | revision |
        | node_remove | request, peer, name? | revision |
        | node_replace | request, peer, by | moved (streams), revision |
        | cluster | request, id | id, revision |
        | stream_rescue | request, account, name, gid, number, kept, peers | assignment, revision |
        | lookup | account, name | assignment |
        | names | account, offset, limit, subject | total, offset, names |
        | list | account, offset, limit, subject | total, offset, assignments, limit if these are long |
        | usage | account | streams, reserved_memory, reserved_storage, tiers (by replicas) |
        """
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise by_code(errors.STREAM_GENERAL, err=f"unknown meta request {kind}")
        if kind != "restore_alive":
            await self._barrier()
        try:
            return await handler(self, body)
        except ApiError as error:
            if self._log is not None and error.err_code in EXPLAINED:
                self._explain(self._log, kind, body, error)
            raise

    def _explain(self, log: Log, kind: str, body: Body, error: ApiError) -> None:
        """Notes why a stream was refused."""
        from jetcluster.cluster.refusals import Refusals, reasons_of_limit, reasons_of_placement

        if self.refusals is None:
            self.refusals = Refusals(self._clock, log)
        account, machine = body.get("account", ""), self._machine
        old = machine.assignment(account, body.get("name", ""))
        config = body.get("config") or (old.config if old is not None else None)
        if config is None:
            return
        if error.err_code == errors.NO_SUITABLE_PEERS:
            # Only a new stream's bytes are looked at.
            asked = config if kind == "stream_create" else {**config, "max_bytes": -1}
            names = {peer: node.name for peer, node in machine.nodes.items()}
            draining = [node.name for node in machine.nodes.values() if node.draining]
            candidates, rules = self._candidates(config["storage"]), self._rules()
            why = reasons_of_placement(asked, candidates, names, draining, rules, self._cluster_name)
        elif error.err_code != errors.REPLICAS_NOT_SUPPORTED:
            why = reasons_of_limit(machine.limit_use(account, config, limits_of(body)), config)
        else:
            why = [f"{config['num_replicas']} replicas are asked for, and this server is in no cluster"]
        self.refusals.note(account, config["name"], str(body.get("request", "")), error, why)

    async def _stream_create(self, body: Body) -> Body:
        account, config = body["account"], body["config"]
        self._check_clustered(config)
        self._check_versions(config)
        self._check_effort(account, config)
        limits = limits_of(body)
        existing = self._machine.check_create(account, config, limits)
        if existing is None:
            check_room(self._machine, account, config, limits)
        # An equal stream is answered also while no node has room for another one.
        placement = ChosenPeers(existing.peers, existing.leader_hint) if existing else self._place(config)
        with self._placing(placement, config), self._linked(account, config):
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
        self._check_versions(body["config"])
        self._check_effort(body["account"], body["config"])
        keys = ("request", "account", "config")
        command = {"kind": "stream_update", **{key: body[key] for key in keys}, "limits": limits_of(body)}
        new = body["config"]
        old = self._machine.assignment(body["account"], new["name"])
        if old is not None and self._goes_elsewhere(old, new):
            # A change of both is refused in apply (10123).
            scaled = new["num_replicas"] != old.replicas
            if new["num_replicas"] > old.replicas:
                check_tier(self._machine, body)
            command["peers"] = self._scaled(old, new["num_replicas"]) if scaled else self._moved(old, new)
            command |= {"from": list(old.peers), "at": self._clock.time_ns()}
        with self._replacing(old, new), self._linked(body["account"], new):
            return await self._decide(command)

    @contextmanager
    def _linked(self, account: str, config: Mapping[str, Any]) -> Iterator[None]:
        """Compares a mirror's or sources' upstreams with all streams, also those that are not decided yet: of two
        streams that are given each other as sources at the same time one is refused. The client's server, which has
        looked at them before, may not know the other one. Raises ApiError as `link_rules.check_upstreams`."""
        if not config.get("mirror") and not config.get("sources"):
            yield
            return

        def find(name: str) -> Mapping[str, Any] | None:
            if (coming := self._linking.get((account, name))) is not None:
                return coming
            found = self._machine.assignment(account, name)
            return found.config if found is not None else None

        link_rules.check_upstreams(config, find)
        key = account, config["name"]
        self._linking[key] = config
        try:
            yield
        finally:
            if self._linking.get(key) is config:
                del self._linking[key]

    @contextmanager
    def _replacing(self, old: Assignment | None, new: Mapping[str, Any]) -> Iterator[None]:
        """While it lasts `set_peers` takes no peers that were chosen for the placement of `old`, and `_stream_stay` no
        configuration of it."""
        keys: list[tuple[str, str, str]] = []
        if old is not None:
            moves = new.get("placement") != old.config.get("placement")
            keys = [(old.account, old.name, change) for change in (("config", "placement") if moves else ("config",))]
        self._updating.update(keys)
        try:
            yield
        finally:
            self._updating -= Counter(keys)  # those at zero go

    def _check_versions(self, config: Mapping[str, Any]) -> None:
        """Raises ApiError 10052 for a guard while a server is there that would not heed it."""
        if config.get(retention_guard.FIELD) is None:
            return
        if any(self._level(peer) < RETENTION_GUARD_LEVEL for peer in self._machine.nodes):
            raise invalid_config(f"{retention_guard.FIELD} requires a newer version on each server")

    @staticmethod
    def _goes_elsewhere(old: Assignment, new: Mapping[str, Any]) -> bool:
        return new["num_replicas"] != old.replicas or new.get("placement") != old.config.get("placement")

    def _moved(self, old: Assignment, config: Mapping[str, Any]) -> list[str]:
        """Returns the peers of `old` that a new placement allows, and other nodes in place of the rest, and of those
        that it has lost to a server that was removed. Raises ApiError 10005."""
        if not self._clustered:
            return list(old.peers)
        wish = config.get("placement") or {}
        fitting = self._fitting(wish)
        kept = [peer for peer in old.peers if peer in fitting]
        missing = old.replicas - len(kept)
        if not missing:
            return kept
        candidates = self._candidates()
        others = [c for c in candidates if c.peer not in kept]
        beside = [c for c in candidates if c.peer in kept]
        return [*kept, *self._choose(old, missing, others, wish, beside).peers]

    def _fitting(self, wish: Mapping[str, Any]) -> set[str]:
        """Returns the nodes that may keep a replica of a stream with this placement."""
        here = wish.get("cluster") in {None, "", self._cluster_name}
        return {candidate.peer for candidate in self._candidates() if here and fits(candidate, wish)}

    def _scaled(self, old: Assignment, replicas: int) -> list[str]:
        """Returns `replicas` peers for `old`: the leader first, then its peers that are online, then new ones."""
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
        """Returns `count` further peers for a stream. Raises ApiError 10005."""
        return place(old.name, count, others, wish, self._cluster_name, rules=self._rules(), beside=beside)

    async def _stream_delete(self, body: Body) -> Body:
        keys = [key for key in ("request", "account", "name", "gid") if key in body]
        return await self._decide({"kind": "stream_delete", **{key: body[key] for key in keys}})

    async def _stream_restored(self, body: Body) -> Body:
        keys = ("request", "account", "name", "gid")
        with self._restores.ending(int(body["gid"])):
            return await self._decide({"kind": "stream_restored", **{key: body[key] for key in keys}})

    async def _stream_move_cancel(self, body: Body) -> Body:
        keys = ("request", "account", "name", "revision")
        return await self._decide({"kind": "stream_move_cancel", **{key: body[key] for key in keys}})

    async def _stream_peer_remove(self, body: Body) -> Body:
        """Assigns another node in place of one, connected or gone, that must give up its replica."""
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

    async def _stream_leave(self, body: Body) -> Body:
        """Assigns another node with these tags in place of a server, or of one that does not lead."""
        old = self._machine.assignment(body["account"], body["name"])
        if old is None:
            raise by_code(errors.STREAM_NOT_FOUND)
        named = {node.name: node.peer for node in self._machine.nodes.values()}
        left = max(old.peers, key=lambda peer: (peer != self._leader(old.gid), peer))
        if server := body["server"]:
            if server not in named or body["cluster"] not in {"", self._cluster_name}:
                raise by_code(errors.SERVER_NOT_MEMBER)
            left = named[server]
            if left not in old.peers:
                raise by_code(errors.PEER_NOT_MEMBER)
        return await self.set_peers(old, self.peers_without(old, left, body["tags"]), body["request"])

    async def _stream_stay(self, body: Body) -> Body:
        """Gives a stream back the peers, and so many of them, that it had before one was to be removed or their number
        changed. Void while an update is not decided yet, whose configuration this one would take back, and for peers
        that its placement does not allow: those of a move that was taken back."""
        old = self._machine.assignment(body["account"], body["name"])
        peers = [str(peer) for peer in body["peers"]]
        known = len(set(peers)) == len(peers) and all(peer in self._machine.nodes for peer in peers)
        if old is None or old.revision != body["revision"] or not known or not set(peers) & set(old.peers):
            raise by_code(errors.NO_RECONFIGURATION)
        if not set(peers) - set(old.peers) <= self._fitting(old.config.get("placement") or {}):
            raise by_code(errors.NO_RECONFIGURATION)
        if len(peers) == len(old.peers):
            return await self.set_peers(old, peers, body["request"])
        if not old.may_return_to(len(peers)):
            raise by_code(errors.NO_RECONFIGURATION)
        if (old.account, old.name, "config") in self._updating:
            raise by_code(errors.RECONFIGURATION_IN_PROGRESS)
        config = {**old.config, "num_replicas": len(peers)}
        command: Body = {"kind": "stream_update", "account": old.account, "config": config}
        command |= {"limits": limits_of(body), "request": body["request"]}
        command |= {"peers": peers, "from": list(old.peers)}
        with self._replacing(old, config):
            return await self._decide({**command, "at": self._clock.time_ns()})

    def peers_without(self, old: Assignment, removed: str, tags: Sequence[str] = ()) -> list[str]:
        """Returns the stream's peers with another node in place of `removed`, which has these tags besides those of its
        placement. Raises ApiError 10005 where none fits, 10075 where no peer is online that has the stream."""
        if not set(old.peers) & self._online():
            raise by_code(errors.PEER_REMAP)  # offline data cannot be taken over
        candidates = self._candidates()
        others = [c for c in candidates if c.peer not in old.peers]
        beside = [c for c in candidates if c.peer in old.peers and c.peer != removed]
        placement = dict(old.config.get("placement") or {})
        placement |= {"tags": [*(placement.get("tags") or ()), *tags]} if tags else {}
        successor = self._choose(old, 1, others, placement or None, beside).leader
        return [successor if peer == removed else peer for peer in old.peers]

    def may_take(self, old: Assignment, source: str, target: str) -> bool:
        """Returns True when the stream's replica on `source` could be placed on `target`."""
        candidates = self._candidates(old.config["storage"])
        taker = [c for c in candidates if c.peer == target]
        beside = [c for c in candidates if c.peer in old.peers and c.peer != source]
        wish, claim = old.config.get("placement"), max(int(old.config["max_bytes"]), 0)
        try:
            place(old.name, 1, taker, wish, self._cluster_name, rules=self._rules(), beside=beside, claim=claim)
        except ApiError:
            return False
        return True

    def added_peers(self, old: Assignment) -> list[str]:
        """Returns the stream's peers, filled up to its number of replicas. Raises ApiError 10005."""
        return self._scaled(old, old.replicas)

    async def set_peers(self, old: Assignment, peers: Sequence[str], request: str) -> Body:
        """Assigns `peers`; void when the stream has moved, or has another placement, since `old` was read. Raises as
        `handle` does."""
        now = self._machine.assignment(old.account, old.name)
        replaced = now is not None and now.config.get("placement") != old.config.get("placement")
        if replaced or (old.account, old.name, "placement") in self._updating:
            raise by_code(errors.RECONFIGURATION_IN_PROGRESS)
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

    @property
    def _restores(self) -> RestoreWatch:
        if self._watch is None:
            from jetcluster.cluster.restore_watch import RestoreWatch  # few servers ever see a restore

            self._watch = RestoreWatch(self._clock)
        return self._watch

    async def _restore_alive(self, body: Body) -> Body:
        self._restores.alive(int(body["gid"]))
        return {}

    async def give_up_restores(self, term: int, request: Callable[[], str]) -> list[Assignment]:
        """Deletes the streams of abandoned restores (`RestoreWatch`), and returns them. Raises as `handle` does."""
        gone: list[Assignment] = []
        restoring = self._machine.restoring
        if not restoring and self._watch is None:
            return gone
        for assignment in self._restores.overdue(restoring, term):
            if not self._restores.silent(assignment.gid):
                continue
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
        found: list[Body] = []
        size = 0
        for one in page:
            size, before = size + len(json.dumps(one.config)), size
            if found and size > LIST_BYTES:
                return {"total": total, "offset": offset, "limit": len(found), "assignments": found}
            found.append(one.to_dict())
            if size // LIST_STEP_BYTES != before // LIST_STEP_BYTES:
                await asyncio.sleep(0)
        return {"total": total, "offset": offset, "assignments": found}

    async def _usage(self, body: Body) -> Body:
        # Bytes count once, whatever the number of replicas: as nats-server for accounts without tiers.
        tiers = {
            str(replicas): {"streams": streams, "reserved_memory": memory, "reserved_storage": storage}
            for replicas, (streams, memory, storage) in self._machine.usage(body["account"]).items()
        }
        keys = ("streams", "reserved_memory", "reserved_storage")
        return {"tiers": tiers, **{key: sum(tier[key] for tier in tiers.values()) for key in keys}}

    async def _page(self, body: Body) -> tuple[int, int, list[Assignment]]:
        """Returns the total, the effective offset, and at most `limit` assignments, sorted by name."""
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
        """Raises ApiError where apply would have to compare too much, as it cannot pause."""
        if self._machine.overlap_effort(account, config.get("subjects", ())) > MAX_LOOKUPS:
            raise invalid_config("too many subjects for an account whose wildcards are at so many places")

    def _place(self, config: Mapping[str, Any]) -> ChosenPeers:
        # A standalone server ignores the placement, cluster and tags (nats-server 2.15, seen live).
        wish = config.get("placement") if self._clustered else None
        rules, claim, storage = self._rules(), 0, ""
        if self._clustered:  # on a standalone server the account's limits suffice
            claim, storage = max(int(config["max_bytes"]), 0), config["storage"]
        candidates, cluster = self._candidates(storage), self._cluster_name
        return place(config["name"], config["num_replicas"], candidates, wish, cluster, rules=rules, claim=claim)

    def _candidates(self, storage: str = "") -> list[Candidate]:
        """Returns the nodes that may take a replica. `storage`: the kind whose room matters, "" for none."""
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
                machine.leaders_on(node.peer) + self._leading[node.peer],
                machine.replicated_on(node.peer) >= most > 0,
                room - machine.reserved_on(node.peer, storage) - self._reserving[node.peer, storage],
            )
            for node in machine.nodes.values()
            if not (node.draining or node.peer in self.leaving)
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
        self.leaving.check(command)
        result = await self._propose(json.dumps(command, separators=(",", ":")).encode())
        error = result.get("error")
        if error is not None:
            raise ApiError.from_dict(error)
        return result


async def _listening(streams: Iterable[Assignment], wanted: str) -> AsyncIterator[Assignment]:
    """Yields the streams with a subject that overlaps `wanted`, and lets other work run in between."""
    overlap = Patterns([wanted]).overlap
    looked = 0
    for stream in streams:
        own = stream.subjects  # empty for a mirror, or a stream fed by sources alone
        for start in range(0, len(own), SUBJECTS_PER_SLICE):
            some = own[start : start + SUBJECTS_PER_SLICE]
            looked += len(some)
            if looked >= SUBJECTS_PER_SLICE:
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
    "stream_leave": MetaService._stream_leave,
    "stream_stay": MetaService._stream_stay,
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
