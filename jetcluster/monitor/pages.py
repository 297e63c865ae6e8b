"""`NodeSource`: the pages of a running node by name, for HTTP and for the system account. The short ones are here:

- /raftz: the Raft groups of this node, by account; the meta group is the system account's.
- /routez: the links to other nodes.
- /leafz: the links to hubs and leaves.
- /historyz: figures of the last 24 hours, where there is a console (`monitor.history`).
- /findingsz: what is wrong, and what to do (`monitor.findings`).
- /gatewayz: always without gateways, which this server does not have, because tools ask for the page.
- /debug/vars: the interpreter's memory, under the names that Go's runtime has for such numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from jetcluster import __version__
from jetcluster.budget import Steps, at_once
from jetcluster.health.usage import Usage
from jetcluster.model import durations
from jetcluster.model.cluster_info import group_name
from jetcluster.model.times import rfc3339
from jetcluster.monitor.accountz import accountz
from jetcluster.monitor.accstatz import accstatz
from jetcluster.monitor.connz import connz_steps
from jetcluster.monitor.healthz import healthz, restart_health
from jetcluster.monitor.jsz import jsz_steps, log_bytes, node_name
from jetcluster.monitor.shared import part_of
from jetcluster.monitor.source import ROWS_PER_STEP, Health, Json, Query, QueryError, flag, number, subs_detail
from jetcluster.monitor.subsz import in_portions, subsz_steps
from jetcluster.monitor.varz import varz
from jetcluster.monitor.view import engine_of, figures, leaf_links, links_of, now_text, rtt, text, uptime, wall_time
from jetcluster.node.node import Node
from jetcluster.protocol.interest import RemotePeer
from jetcluster.raft.api import GroupStatus, Role
from jetcluster.raft.core.group import Group
from jetcluster.server.accounts.subscription import RemoteInterest

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.mesh.peer_link import PeerLink
    from jetcluster.raft.api import PeerStatus, RaftGroup
    from jetcluster.replica.stream_replica import StreamReplica
    from jetcluster.server.leaf.connection import LeafConnection

META = "_meta_"


def raftz(node: Node, query: Query) -> Json:
    """`acc`: the account, the system account when absent; `group`: one group. Returns {} when no group matches."""
    engine = engine_of(node)
    system = node.options.system_account_name
    account, wanted = query.get("acc", "") or system, query.get("group", "")
    if engine is None or not engine.clustered:
        return {}
    found: Json = {}
    for name, group, replica in _groups(engine, account, system):
        if not wanted or name == wanted:
            found[name] = _group(engine, group, replica, system)
    return {account: found} if found else {}


def _groups(engine: JetStream, account: str, system: str) -> list[tuple[str, RaftGroup, StreamReplica | None]]:
    """(name, Raft group, stream replica or None)."""
    found: list[tuple[str, RaftGroup, StreamReplica | None]] = []
    if account == system and engine.meta.group is not None:
        found.append((META, engine.meta.group, None))
    for gid, replica in engine.replicas.items():
        assignment = replica.assignment
        if assignment.account == account and assignment.replicas > 1:
            found.append((group_name(gid, assignment.replicas, assignment.memory), replica.group, replica))
    return found


def _group(engine: JetStream, group: RaftGroup, replica: StreamReplica | None, system: str) -> Json:
    status = group.status()
    size = len(group.peers)
    found: Json = {
        "id": engine.network.me,
        "state": status.role.name,
        "size": size,
        "quorum_needed": size // 2 + 1,
        "committed": status.commit_index,
        "applied": status.applied_index,
    }
    if status.overrun:
        found["overrun"] = True
    if status.overrun_count:
        found["overrun_count"] = status.overrun_count
    if status.needs_snapshot or (replica is not None and replica.installing):
        found["catching_up"] = True
    if status.leader is not None:
        found["leader"] = status.leader
    voted = group.log.voted_for if isinstance(group, Group) else None
    since = replica.leader_since_ns if replica is not None else 0
    if since:
        found["leader_since"] = rfc3339(since)
    found |= {
        "ever_had_leader": status.leader is not None or status.term > 0,
        "term": status.term,
        **({"voted_for": voted} if voted else {}),
        **_queues(status),
        "pterm": status.term,
        "pindex": status.last_index,
        "system_account": True,
        "traffic_account": system,
        "wal": {
            "messages": max(status.last_index - status.first_index + 1, 0),
            "bytes": log_bytes(group),
            "first_seq": status.first_index,
            "last_seq": status.last_index,
            "durable_seq": status.durable_index,
        },
    }
    if status.stopped:
        found["wal_error"] = status.stopped
    found["peers"] = {peer.peer: _peer(engine, peer) for peer in status.peers}
    return found


def _queues(status: GroupStatus) -> Json:
    """Lengths of a group's queues, under nats-server's names: proposals that wait for their majority, entries that wait
    for the journal's sync, committed entries to apply. Followers' answers are never queued."""
    leads = status.role is Role.LEADER
    return {
        "ipq_proposal_len": max(status.last_index - status.commit_index, 0) if leads else 0,
        "ipq_entry_len": max(status.last_index - status.durable_index, 0),
        "ipq_resp_len": 0,
        "ipq_apply_len": max(status.commit_index - status.applied_index, 0),
    }


def _peer(engine: JetStream, peer: PeerStatus) -> Json:
    found: Json = {"name": node_name(engine, peer.peer), "known": True}
    if peer.match_index:
        found["last_replicated_index"] = peer.match_index
    if peer.last_seen:
        found["last_seen"] = durations.render(int(max(engine.runtime.clock.monotonic() - peer.last_seen, 0) * 1e9))
    return found


def routez_steps(node: Node, query: Query) -> Steps[Json]:
    """Raises QueryError."""
    listed, detailed = subs_detail(query)
    links = sorted(links_of(node), key=lambda link: int(link.stats.rid))
    wanted: dict[RemotePeer, list[tuple[str, RemoteInterest]]] = {link: [] for link in links}
    for router in node.server.accounts if links else ():
        for some in in_portions(router.index):
            for subscription in some:
                if isinstance(subscription, RemoteInterest) and subscription.peer in wanted:
                    wanted[subscription.peer].append((router.account, subscription))
            yield
    routes = []
    for link in links:
        routes.append(_route(node, link, len(wanted[link])))
        if listed and wanted[link]:
            routes[-1] |= yield from _listed(wanted[link], link.stats.rid, detailed=detailed)
        routes[-1]["compression"] = "off"
    return {
        "server_id": node.server.server_id,
        "server_name": node.server.name,
        "now": now_text(node),
        "num_routes": len(links),
        "routes": routes,
    }


def _route(node: Node, link: PeerLink, subscriptions: int) -> Json:
    stats, now = link.stats, node.clock.monotonic()
    found: Json = {
        "rid": stats.rid,
        "remote_id": (link.info.server_id if link.info is not None else "") or link.peer_id,
        "remote_name": link.info.name if link.info is not None else "",
        "did_solicit": stats.did_solicit,
        "is_configured": stats.configured,
        "ip": stats.ip,
        "port": stats.port,
        "start": wall_time(node, stats.started),
        "last_activity": wall_time(node, stats.last_activity),
    }
    if stats.rtt:
        found["rtt"] = rtt(stats.rtt)
    found |= {
        "uptime": uptime(now - stats.started),
        "idle": uptime(now - stats.last_activity),
        "pending_size": link.pending,
        **figures(stats),
        "subscriptions": subscriptions,
    }
    return found


def _listed(interests: list[tuple[str, RemoteInterest]], rid: int, *, detailed: bool) -> Steps[Json]:
    shown: list[Json | str] = []
    for start in range(0, len(interests), ROWS_PER_STEP):
        some = interests[start : start + ROWS_PER_STEP]
        if detailed:
            shown += [_detail(account, interest, rid) for account, interest in some]
        else:
            shown += [text(interest.subject) for _, interest in some]
        yield
    return {"subscriptions_list_detail" if detailed else "subscriptions_list": shown}


def _detail(account: str, interest: RemoteInterest, rid: int) -> Json:
    found: Json = {"subject": text(interest.subject)}
    sid = f"R {account} {found['subject']}"  # nats-server's name for it within a route
    if interest.queue:
        found["qgroup"] = text(interest.queue)
        sid += f" {found['qgroup']}"
    return {**found, "sid": sid, "msgs": 0, "cid": rid}


def leafz(node: Node, query: Query) -> Json:
    """Raises QueryError."""
    listed, account = flag(query, "subs"), query.get("acc", "")
    links = [link for link in leaf_links(node) if not account or link.account == account]
    return {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "leafnodes": len(links),
        "leafs": [_leaf(node, link, listed=listed) for link in links],
    }


def _leaf(node: Node, link: LeafConnection, *, listed: bool) -> Json:
    found: Json = {
        "id": link.cid,
        "name": link.remote_name,
        "is_spoke": link.spoke,
        "account": link.account,
        "ip": link.ip,
        "port": link.port,
    }
    if link.rtt:
        found["rtt"] = rtt(link.rtt)
    found |= {
        **figures(link),
        "subscriptions": link.wanted,
    }
    if listed:
        router = node.server.accounts[link.account]
        wants = [one for one in router.index if isinstance(one, RemoteInterest) and one.peer is cast(RemotePeer, link)]
        found["subscriptions_list"] = [text(one.subject) for one in wants]
    return found


def gatewayz(node: Node, query: Query) -> Json:
    """Raises QueryError."""
    subs_detail(query)
    flag(query, "accs")
    return {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "outbound_gateways": {},
        "inbound_gateways": {},
    }


def expvarz(usage: Usage) -> Json:
    """Bytes and counts. The command line is left out: it may hold a password."""
    collections, freed = usage.collections()
    return {"memstats": {"Sys": usage.memory_bytes(), "NumGC": collections, "Frees": freed}}


def _ipqueuesz(node: Node, query: Query) -> Json:
    """Returns an empty page: there are no queues between goroutines. Raises QueryError."""
    flag(query, "all")
    return {}


def _profilez(node: Node, query: Query) -> Json:
    name = query.get("name", "")
    if not name:
        return {"profile": None, "error": "Profile name not specified"}
    return {"profile": None, "error": f'no profile "{name}": this server is not a Go program, use py-spy'}


T = TypeVar("T")
_IN_STEPS = {"connz": connz_steps, "jsz": jsz_steps, "routez": routez_steps, "subsz": subsz_steps}
"""Pages whose length depends on the query or on the number of streams."""
_SHORT: Mapping[str, Callable[[Node, Query], Json]] = {
    "accountz": accountz,
    "accstatz": accstatz,
    "expvarz": lambda node, _: expvarz(node.page_counters.usage),
    "gatewayz": gatewayz,
    "ipqueuesz": _ipqueuesz,
    "leafz": leafz,
    "profilez": _profilez,
    "raftz": raftz,
    "varz": lambda node, _: varz(node),
}


class NodeSource:
    """Pages by name, each a JSON object with nats-server's field names. All raise QueryError. They run on the event
    loop, so long pages are made `in_steps`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def page(self, name: str, query: Query) -> Json:
        """Makes the page `name` in one step. Raises QueryError, KeyError."""
        return at_once(self.in_steps(name, query))

    async def healthz(self, query: Query) -> Health:
        if flag(query, "safe-to-restart"):
            return await restart_health(self._node)
        return healthz(self._node, query)

    def in_steps(self, name: str, query: Query) -> Steps[Json]:
        """Makes the page in steps of about a millisecond."""
        steps = _IN_STEPS.get(name)
        if steps is not None:
            return (yield from steps(self._node, query))
        return _SHORT[name](self._node, query)

    async def run(self, asker: str, steps: Steps[T]) -> T:
        """Runs `steps` within the event loop's time for jobs. Raises BusyError, and what `steps` raise."""
        return await self._node.server.budget.run(("monitor", asker), steps)

    async def findings(self, _asker: str, query: Query) -> Json:
        """Returns what is wrong (`monitor.findings`), with `cluster` of all servers. Raises QueryError, BusyError."""
        from jetcluster.monitor.findings import Findings

        return await part_of(self._node, Findings).answer(cluster=flag(query, "cluster"))

    async def history(self, asker: str, query: Query) -> Json:
        """Returns figures of the last day (`monitor.history`): `seconds`, `points`, and `columns` by commas, all by
        default. Raises QueryError, BusyError."""
        from jetcluster.monitor.history import DEFAULT_POINTS, DEFAULT_SECONDS, NOT_KEPT, History, is_kept

        if not is_kept(self._node):
            raise QueryError(NOT_KEPT)
        seconds, points = number(query, "seconds", DEFAULT_SECONDS), number(query, "points", DEFAULT_POINTS)
        columns = [name for name in query.get("columns", "").split(",") if name]
        return await part_of(self._node, History).answer(asker, seconds, points, columns)

    def welcome(self) -> Json:
        """Returns what the console shows before its login. `anonymous`: a login without credentials is some user's."""
        state = self._node.server.state
        return {
            "server_name": state.name,
            "cluster": state.options.cluster_name,
            "version": __version__,
            "auth_required": state.authenticator.required,
            "anonymous": bool(state.options.no_auth_user),
        }

    def count_request(self, path: str) -> None:
        """Counts a request over HTTP, for `http_req_stats` of /varz."""
        counts = self._node.page_counters.requests
        counts[path] = counts.get(path, 0) + 1
