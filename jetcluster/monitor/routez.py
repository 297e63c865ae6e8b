"""/routez: the links to other nodes."""

from __future__ import annotations

from typing import Any

from jetcluster.monitor.source import Json, Query, subs_detail
from jetcluster.monitor.view import NodeView, links_of, now_text, rtt, text, uptime, wall_time


def routez(node: NodeView, query: Query) -> Json:
    """Raises QueryError."""
    listed, detailed = subs_detail(query)
    links = sorted(links_of(node), key=lambda link: int(link.stats.rid))
    return {
        "server_id": node.server.server_id,
        "server_name": node.server.name,
        "now": now_text(node),
        "num_routes": len(links),
        "routes": [_route(node, link, listed=listed, detailed=detailed) for link in links],
    }


def _route(node: NodeView, link: Any, *, listed: bool, detailed: bool) -> Json:
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
    interests = remote_interests(node, link)
    found |= {
        "uptime": uptime(now - stats.started),
        "idle": uptime(now - stats.last_activity),
        "pending_size": link.pending,
        "in_msgs": stats.in_msgs,
        "out_msgs": stats.out_msgs,
        "in_bytes": stats.in_bytes,
        "out_bytes": stats.out_bytes,
        "subscriptions": len(interests),
    }
    if listed and interests and detailed:
        found["subscriptions_list_detail"] = [_detail(account, interest, stats.rid) for account, interest in interests]
    elif listed and interests:
        found["subscriptions_list"] = [text(interest.subject) for _, interest in interests]
    found["compression"] = "off"
    return found


def remote_interests(node: NodeView, link: Any) -> list[tuple[str, Any]]:
    """(account, `RemoteInterest`) of all that the peer wants."""
    return [
        (router.account, subscription)
        for router in node.server.accounts
        for subscription in router.index
        if getattr(subscription, "peer", None) is link
    ]


def _detail(account: str, interest: Any, rid: int) -> Json:
    found: Json = {"subject": text(interest.subject)}
    sid = f"R {account} {found['subject']}"  # nats-server's name for it within a route
    if interest.queue:
        found["qgroup"] = text(interest.queue)
        sid += f" {found['qgroup']}"
    return {**found, "sid": sid, "msgs": 0, "cid": rid}
