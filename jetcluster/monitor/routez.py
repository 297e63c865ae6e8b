"""/routez: the links to other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.budget import Steps
from jetcluster.monitor.source import ROWS, Json, Query, subs_detail
from jetcluster.monitor.subsz import in_portions
from jetcluster.monitor.view import NodeView, links_of, now_text, rtt, text, uptime, wall_time
from jetcluster.server.accounts.subscription import RemoteInterest

if TYPE_CHECKING:
    from jetcluster.mesh.peer_link import PeerLink
    from jetcluster.protocol.interest import RemotePeer


def routez_steps(node: NodeView, query: Query) -> Steps[Json]:
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


def _route(node: NodeView, link: PeerLink, subscriptions: int) -> Json:
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
        "in_msgs": stats.in_msgs,
        "out_msgs": stats.out_msgs,
        "in_bytes": stats.in_bytes,
        "out_bytes": stats.out_bytes,
        "subscriptions": subscriptions,
    }
    return found


def _listed(interests: list[tuple[str, RemoteInterest]], rid: int, *, detailed: bool) -> Steps[Json]:
    shown: list[Json | str] = []
    for start in range(0, len(interests), ROWS):
        some = interests[start : start + ROWS]
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
