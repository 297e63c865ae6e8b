"""The judge of what servers tell of themselves: all pages of one moment agree with each other and with what is there.

An operator sees no more of a server than this. A number of another field, a connection that one page has and another
lacks, an answer that all is well from one who knows no leader: no client of a stream ever notices it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.model.times import rfc3339
from jetcluster.monitor.healthz import healthz
from jetcluster.monitor.pages import NodeSource
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import Machine
from tests.sim.cluster import stream_pages, upkeep
from tests.sim.cluster.stream_pages import same

if TYPE_CHECKING:
    from jetcluster.node.node import Node

EVERY = 2.0
"""Seconds between two looks, each at the health of all servers, and at other pages of another one."""
ALL = "1000000"
"""`limit` of a page that has all."""
FEW = 3
"""Rows of a page that has some."""
Json = dict[str, Any]
Look = Callable[["Node"], Iterator[str]]
"""Yields what is wrong on some pages of a node."""

ROW = {
    "cid": "cid", "ip": "ip", "port": "port", "in_msgs": "in_msgs", "out_msgs": "out_msgs", "in_bytes": "in_bytes",
    "out_bytes": "out_bytes", "type": "client_type",
}  # fmt: skip
"""Fields of a connection, and where the server has them."""
LASTING = ("ip", "port", "start", "type", "account", "authorized_user", "name", "lang", "version")
"""Those that a connection had when it was open, and has when it is closed."""
GROWING = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
TOTALS = (
    "total_connections", "in_msgs", "in_bytes", "in_client_msgs", "in_client_bytes", "out_client_msgs",
    "out_client_bytes", "slow_consumers", "stale_connections", "stalled_clients",
)  # fmt: skip
"""Numbers of /varz that never become less; those of links do, as a link that is lost takes its own with it."""
SORTS: dict[str, tuple[str, bool]] = {
    "cid": ("cid", False), "start": ("start", False), "subs": ("subscriptions", True),
    "pending": ("pending_bytes", True), "msgs_to": ("out_msgs", True), "msgs_from": ("in_msgs", True),
    "bytes_to": ("out_bytes", True), "bytes_from": ("in_bytes", True), "last": ("last_activity", True),
    "idle": ("last_activity", False), "uptime": ("start", True), "stop": ("stop", True), "reason": ("reason", False),
}  # fmt: skip
"""`sort` -> (field, largest first)."""


class Pages:
    """`begin` has everything looked at from then on; what is broken is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.looks = 0
        self._deployment = deployment
        self._known: dict[str, tuple[object, dict[int, Json], Json]] = {}
        """Machine -> (the object of that process, its open connections, its totals) at the last look."""

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        """Looks at some pages of one server. Raises Violation."""
        ready = [machine for machine in self._deployment.machines.values() if machine.ready]
        for machine in ready:
            for kind in ALWAYS:
                self.look_with(machine, kind)
        if ready:
            kinds, at = self.kinds(), self.looks
            machine = ready[(at + at // len(kinds)) % len(ready)]
            self.look_with(machine, kinds[at % len(kinds)])
        self.looks += 1

    def kinds(self) -> list[Look]:
        return [
            connections, sorted_and_paged(self.looks), accounts, subscriptions, links, stream_pages.wrong, self._since,
            upkeep.indexes, upkeep.routes(self.looks), upkeep.requests,
        ]  # fmt: skip

    def look_at_all(self) -> None:
        """Looks at all pages of all servers. Raises Violation."""
        for machine in self._deployment.machines.values():
            for kind in (*ALWAYS, *self.kinds(), stream_pages.room) if machine.ready else ():
                self.look_with(machine, kind)

    def look_with(self, machine: Machine, look: Look) -> None:
        assert machine.node is not None
        counters = machine.node.page_counters
        meter = counters.cpu
        counters.cpu = copy(meter)  # it tells what was used since it was asked last, to clients as well
        try:
            for text in look(machine.node):
                raise Violation(f"at {self._deployment.scheduler.now:.3f}: {machine.name}: {text}")
        finally:
            counters.cpu = meter

    def _since(self, node: Node) -> Iterator[str]:
        """Compares with the last look at the same process."""
        rows = _connz(node, state="all", auth="1")
        varz = NodeSource(node).page("varz", {})
        name = node.options.server_name
        process, known, before = self._known.get(name, (None, {}, {}))
        if process is node:
            for row in rows:
                was = known.get(row["cid"])
                if was is None:
                    continue
                if gone := [key for key in LASTING if was.get(key) and row.get(key) != was[key]]:
                    yield f"{gone[0]} of connection {row['cid']} was {was[gone[0]]}, and is {row.get(gone[0])}"
                if less := [key for key in GROWING if row[key] < was[key]]:
                    yield f"{less[0]} of connection {row['cid']} was {was[less[0]]}, and is {row[less[0]]}"
            for key in TOTALS:
                if varz[key] < before.get(key, 0) and not (key in ("in_msgs", "in_bytes") and _links_lost(node)):
                    yield f"{key} was {before[key]}, and is {varz[key]}"
        open_ones = {row["cid"]: row for row in rows if "reason" not in row}
        self._known[name] = node, open_ones, {key: varz[key] for key in TOTALS}


def _links_lost(node: Node) -> bool:
    """True where totals may have become less: what a link has counted goes with it."""
    return node.jetstream is not None or node.leafnodes is not None


def _connz(node: Node, **query: str) -> list[Json]:
    found: list[Json] = NodeSource(node).page("connz", {"limit": ALL, **query})["connections"]
    return found


# ---- connections


def connections(node: Node) -> Iterator[str]:
    """/connz against the connections, and the totals of /varz and STATSZ against /connz, /routez and /leafz."""
    clients, source = node.server.clients, NodeSource(node)
    present: dict[int, Any] = attrgetter("_present")(clients)
    rows = _connz(node, state="all", auth="1")
    opened, closed = _connz(node, state="open", auth="1"), _connz(node, state="closed", auth="1")
    yield from same("open connections", [row["cid"] for row in opened], sorted(present))
    yield from same("closed ones", sorted(row["cid"] for row in closed), sorted(one.cid for one in clients.closed))
    yield from same("all of them", [row["cid"] for row in rows], sorted(row["cid"] for row in (*opened, *closed)))
    gone = {one.cid: one for one in clients.closed}
    for row in rows:
        one: Any = present.get(row["cid"]) or gone[row["cid"]]
        held = one.subscriptions if isinstance(one.subscriptions, int) else len(one.subscriptions)
        wanted = {key: getattr(one, field) for key, field in ROW.items()}
        wanted |= {"start": rfc3339(one.start_ns), "account": one.account, "subscriptions": held}
        wanted |= {key: value for key in ("name", "lang", "version") if (value := getattr(one, key))}
        wanted |= {"authorized_user": one.user} if one.user else {}
        if row["cid"] in present:
            wanted["pending_bytes"] = one.pending
        else:
            wanted |= {"reason": one.reason, "stop": rfc3339(one.stop_ns), "pending_bytes": 0}
        yield from same(f"connection {row['cid']}", {key: row.get(key) for key in wanted}, wanted)
    if len(clients.closed) < (clients.closed.maxlen or 0):
        yield from _totals(node, source, rows, len(opened) - len(clients.departed))


def _totals(node: Node, source: NodeSource, rows: list[Json], connected: int) -> Iterator[str]:
    """`rows`: of all connections that there ever were."""
    varz, statsz = source.page("varz", {}), _statsz(node)
    routes, leafs = source.page("routez", {})["routes"], source.page("leafz", {})["leafs"]
    found = {
        "connections": connected, "total_connections": len(rows), "routes": len(routes), "remotes": len(routes),
        "leafnodes": len(leafs),
    }  # fmt: skip
    for way in ("in", "out"):
        for kind in ("msgs", "bytes"):
            of_clients = sum(row[f"{way}_{kind}"] for row in rows)
            found[f"{way}_client_{kind}"] = of_clients
            found[f"{way}_{kind}"] = of_clients + sum(row[f"{way}_{kind}"] for row in (*routes, *leafs))
    found["subscriptions"] = sum(len(list(router.index)) for router in node.server.accounts)
    yield from same("/varz", {key: varz[key] for key in found}, found)
    own = {key: varz[key] for key in ("connections", "total_connections", "subscriptions", "slow_consumers",
                                      "slow_consumer_stats", "stale_connections", "stale_connection_stats",
                                      "stalled_clients", "start")}  # fmt: skip
    for name, way in (("sent", "out"), ("received", "in")):
        other = f"{name}_{'to' if name == 'sent' else 'from'}_clients"
        own |= {name: {"msgs": varz[f"{way}_msgs"], "bytes": varz[f"{way}_bytes"]}}
        own |= {other: {"msgs": varz[f"{way}_client_msgs"], "bytes": varz[f"{way}_client_bytes"]}}
    own["active_servers"] = 1 + len(routes)
    yield from same("STATSZ", {key: statsz[key] for key in own}, own)
    told = [
        (one["rid"], one["name"], one["sent"]["msgs"], one["sent"]["bytes"], one["received"]["msgs"],
         one["received"]["bytes"])
        for one in statsz.get("routes", ())
    ]  # fmt: skip
    listed = [
        (one["rid"], one["remote_name"], one["out_msgs"], one["out_bytes"], one["in_msgs"], one["in_bytes"])
        for one in routes
    ]
    yield from same("routes of STATSZ", told, listed)
    yield from _options(node, varz)


def _statsz(node: Node) -> Json:
    from jetcluster.monitor.varz import statsz

    return statsz(node)


def _options(node: Node, varz: Json) -> Iterator[str]:
    """The settings that it was configured with."""
    options, state = node.options, node.server.state
    wanted = {
        "server_id": node.server.server_id, "server_name": options.server_name, "host": options.host,
        "port": options.port, "max_connections": options.max_connections, "max_payload": options.max_payload,
        "max_pending": options.max_pending, "max_control_line": options.max_control_line,
        "ping_max": options.ping_max, "ping_interval": round(options.ping_interval * 1e9),
        "write_deadline": round(options.write_deadline * 1e9), "auth_timeout": options.auth_timeout,
        "system_account": options.system_account_name, "start": rfc3339(node.server.start_ns),
        "slow_consumers": state.slow_consumers, "stale_connections": state.stale_connections,
        "stalled_clients": state.stalled_clients,
    }  # fmt: skip
    wanted |= {"tags": options.server_tags} if options.server_tags else {}
    yield from same("/varz", {key: varz.get(key) for key in wanted}, wanted)


def sorted_and_paged(look: int) -> Look:
    """Another `sort`, offset and account at each look."""

    def wrong(node: Node) -> Iterator[str]:
        sort, (field, falling) = list(SORTS.items())[look % len(SORTS)]
        state = "closed" if sort in ("stop", "reason") else "open"
        rows = _connz(node, state=state, sort=sort, auth="1")
        values = [row[field] for row in rows]
        yield from same(f"connections by {sort}", values, sorted(values, reverse=falling))
        by_cid = [row["cid"] for row in _connz(node, state=state, auth="1")]
        yield from same(f"cids by {sort}", sorted(row["cid"] for row in rows), by_cid)
        start = look % (len(by_cid) + 1)
        page = NodeSource(node).page("connz", {"state": state, "offset": str(start), "limit": str(FEW)})
        found = [row["cid"] for row in page["connections"]]
        yield from same(f"{FEW} connections from {start} on", found, by_cid[start : start + FEW])
        heads = {key: page[key] for key in ("total", "offset", "limit", "num_connections")}
        wanted = {"total": len(by_cid), "offset": start, "limit": FEW, "num_connections": len(found)}
        yield from same("the page's head", heads, wanted)
        for key, parameter in (("account", "acc"), ("authorized_user", "user"), ("cid", "cid")):
            if rows and (value := rows[look % len(rows)].get(key)):
                some = sorted(row["cid"] for row in rows if row.get(key) == value)
                told = [row["cid"] for row in _connz(node, state=state, **{parameter: str(value)})]
                yield from same(f"connections with {parameter}={value}", told, some)

    return wrong


# ---- accounts, subscriptions, links


def accounts(node: Node) -> Iterator[str]:
    """Compares /accstatz and /accountz with the connections, links and subscriptions of each account."""
    source, clients = NodeSource(node), node.server.clients
    present = list(clients)
    leafs = [] if node.leafnodes is None else list(node.leafnodes.links)
    stats = {row["acc"]: row for row in source.page("accstatz", {"unused": "1"})["account_statz"]}
    yield from same("accounts", sorted(stats), sorted(router.account for router in node.server.accounts))
    used = [row["acc"] for row in source.page("accstatz", {})["account_statz"]]
    yield from same("used accounts", used, sorted({one.account for one in (*present, *leafs)} & stats.keys()))
    mesh = None if node.jetstream is None else node.jetstream.mesh
    routed = {} if mesh is None else mesh.traffic.by_account
    lost = {name: total.slow_consumers for name, total in clients.closed_totals.items()}
    whole = len(clients.closed) < (clients.closed.maxlen or 0)
    slow = Counter(one.account for one in clients.closed if one.reason.startswith("Slow Consumer"))
    for router in node.server.accounts:
        name, row = router.account, stats[router.account]
        own = [one for one in present if one.account == name]
        links = [one for one in leafs if one.account == name]
        gone = [one for one in clients.closed if one.account == name]
        wanted: Json = {
            "conns": len(own), "leafnodes": len(links), "total_conns": len(own) + len(links),
            "num_subscriptions": len(list(router.index)), "slow_consumers": lost.get(name, 0),
        }  # fmt: skip
        if whole:
            wanted["slow_consumers"] = slow[name]
            others = [routed[name]] if name in routed else []
            for key, way in (("sent", "out"), ("received", "in")):
                wanted[key] = _traffic([*own, *gone, *links, *others], way) | {
                    "gateways": _traffic([], way), "routes": _traffic(others, way), "leafs": _traffic(links, way)
                }  # fmt: skip
        yield from same(f"account {name}", {key: row[key] for key in wanted}, wanted)
        detail = source.page("accountz", {"acc": name})["account_detail"]
        wanted = {
            "account_name": name, "client_connections": len(own), "leafnode_connections": len(links),
            "subscriptions": len(list(router.index)), "is_system": name == node.options.system_account_name,
            "jetstream_enabled": node.jetstream is not None and name in node.jetstream.apis,
        }  # fmt: skip
        yield from same(f"/accountz of {name}", {key: detail.get(key, False) for key in wanted}, wanted)


def _traffic(of: list[Any], way: str) -> Json:
    return {kind: sum(getattr(one, f"{way}_{kind}") for one in of) for kind in ("msgs", "bytes")}


def subscriptions(node: Node) -> Iterator[str]:
    """Compares /subsz with the subscriptions of each account."""
    from jetcluster.server.accounts.subscription import RemoteInterest

    source = NodeSource(node)
    for router in node.server.accounts:
        own = [one for one in router.index if not isinstance(one, RemoteInterest)]
        page = source.page("subsz", {"subs": "1", "acc": router.account, "limit": ALL})
        found = sorted(
            (one["subject"], one.get("qgroup", ""), one["cid"]) for one in page.get("subscriptions_list", ())
        )
        wanted = sorted((_text(one.subject), _text(one.queue or b""), _cid(one)) for one in own)
        yield from same(f"subscriptions of {router.account}", found, wanted)
        yield from same(f"how many of {router.account}", page["total"], len(own))
        yield from same(f"all of {router.account}", page["num_subscriptions"], len(list(router.index)))


def _text(subject: bytes) -> str:
    return subject.decode(errors="replace")


def _cid(one: Any) -> int:
    owner = getattr(one, "owner", None)
    return int(owner.cid) if hasattr(one, "sid") and owner is not None else 0


def links(node: Node) -> Iterator[str]:
    """Compares /routez and /leafz with the links."""
    from jetcluster.server.accounts.subscription import RemoteInterest

    source = NodeSource(node)
    mesh = None if node.jetstream is None else node.jetstream.mesh
    present = {} if mesh is None else {link.stats.rid: link for link in mesh.links.values()}
    wants = Counter(
        id(one.peer) for router in node.server.accounts for one in router.index if isinstance(one, RemoteInterest)
    )
    page = source.page("routez", {"subs": "1"})
    yield from same("num_routes", page["num_routes"], len(present))
    yield from same("routes", [row["rid"] for row in page["routes"]], sorted(present))
    for row in page["routes"]:
        link = present[row["rid"]]
        wanted = {key: getattr(link.stats, key) for key in (*GROWING, "ip", "port")} | {
            "remote_name": link.info.name if link.info is not None else "", "did_solicit": link.stats.did_solicit,
            "is_configured": link.stats.configured, "subscriptions": wants[id(link)], "pending_size": link.pending,
        }  # fmt: skip
        yield from same(f"route {row['rid']}", {key: row[key] for key in wanted}, wanted)
        yield from same(f"list of route {row['rid']}", len(row.get("subscriptions_list", ())), wants[id(link)])
    leafs = {} if node.leafnodes is None else {link.cid: link for link in node.leafnodes.links}
    page = source.page("leafz", {"subs": "1"})
    yield from same("leafs", [row["id"] for row in page["leafs"]], sorted(leafs))
    for row in page["leafs"]:
        leaf = leafs[row["id"]]
        wanted = {key: getattr(leaf, key) for key in (*GROWING, "ip", "port", "account")} | {
            "name": leaf.remote_name, "is_spoke": leaf.spoke, "subscriptions": wants[id(leaf)],
        }  # fmt: skip
        yield from same(f"leaf link {row['id']}", {key: row[key] for key in wanted}, wanted)
        yield from same(f"list of leaf link {row['id']}", len(row.get("subscriptions_list", ())), wants[id(leaf)])


# ---- health


def health(node: Node) -> Iterator[str]:
    """Compares /healthz with what the server knows of itself, and its narrower questions with that."""
    ailments = stream_pages.ailments(node)
    found = healthz(node, {})
    if (found.status == 200) == bool(ailments):
        yield f"/healthz says {found.status} {found.body.get('error')}, and wrong is {ailments[:3] or 'nothing'}"
    details = healthz(node, {"details": "1"})
    yield from same("the status with details", details.status, found.status)
    if ailments and not details.body.get("errors"):
        yield f"/healthz names none of {ailments[:3]}"
    only = healthz(node, {"js-enabled-only": "1"})
    running = not node.options.jetstream.enabled or (
        node.jetstream is not None and node.jetstream.jetstream is not None
    )
    yield from same("whether JetStream runs", only.status == 200, running)


ALWAYS: tuple[Look, ...] = (health, upkeep.clients, upkeep.links)
"""Looked at each time, at every server."""
