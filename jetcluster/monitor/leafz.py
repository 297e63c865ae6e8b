"""/leafz: the links to hubs and leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jetcluster.monitor.source import Json, Query, flag
from jetcluster.monitor.view import NodeView, now_text, rtt, text
from jetcluster.protocol.interest import RemotePeer
from jetcluster.server.accounts.subscription import RemoteInterest

if TYPE_CHECKING:
    from jetcluster.server.leaf.connection import LeafConnection


def leaf_links(node: NodeView) -> list[LeafConnection]:
    """`server.leaf.connection.LeafConnection`s, in the order of their connection ids."""
    return [] if node.leafnodes is None else sorted(node.leafnodes.links, key=lambda link: int(link.cid))


def leafz(node: NodeView, query: Query) -> Json:
    """Raises QueryError."""
    listed, account = flag(query, "subs"), query.get("acc", "")
    links = [link for link in leaf_links(node) if not account or link.account == account]
    return {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "leafnodes": len(links),
        "leafs": [_leaf(node, link, listed=listed) for link in links],
    }


def _leaf(node: NodeView, link: LeafConnection, *, listed: bool) -> Json:
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
        "in_msgs": link.in_msgs,
        "out_msgs": link.out_msgs,
        "in_bytes": link.in_bytes,
        "out_bytes": link.out_bytes,
        "subscriptions": link.wanted,
    }
    if listed:
        router = node.server.accounts[link.account]
        wants = [one for one in router.index if isinstance(one, RemoteInterest) and one.peer is cast(RemotePeer, link)]
        found["subscriptions_list"] = [text(one.subject) for one in wants]
    return found
