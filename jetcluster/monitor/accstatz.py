"""/accstatz: connections and traffic of accounts. The same numbers go out as `$SYS` events."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from jetcluster.monitor.claims_view import account_name
from jetcluster.monitor.source import Json, Query, flag
from jetcluster.monitor.view import leaf_links, mesh_of, now_text
from jetcluster.node.node import Node

if TYPE_CHECKING:
    from jetcluster.mesh.peer_link import Traffic
    from jetcluster.server.client.clients import Totals
    from jetcluster.server.client.connection import ClientConnection
    from jetcluster.server.leaf.connection import LeafConnection


def accstatz(node: Node, query: Query) -> Json:
    """Raises QueryError. Accounts without connections are left out unless `unused=1`; `acc`: names, by commas."""
    names = {name for name in query.get("acc", "").split(",") if name}
    return account_statz(node, names or None, unused=flag(query, "unused"))


def account_statz(node: Node, names: Container[str] | None, *, unused: bool) -> Json:
    wanted = [name for name in account_names(node) if names is None or name in names]
    found = account_stats(node, wanted)
    return {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "account_statz": [stat for stat in found if unused or stat["total_conns"]],
    }


def account_names(node: Node) -> list[str]:
    return sorted(router.account for router in node.server.accounts)


def connected_accounts(node: Node) -> set[str]:
    """Returns the accounts of clients and leaf links: of very many accounts, few may have a connection."""
    return {client.account for client in node.server.clients} | {link.account for link in leaf_links(node)}


def account_stats(node: Node, names: list[str]) -> list[Json]:
    """The statistics of each account that exists, from one pass over the connections."""
    known = set(account_names(node))  # looking up the router of an unknown account would create it
    rows = {name: _Row() for name in names if name in known}
    server, links = node.server, leaf_links(node)
    for client in server.clients:
        row = rows.get(client.account)
        if row is not None:
            row.conns += 1
            row.all.add(client)
    for link in links:
        row = rows.get(link.account)
        if row is not None:
            row.leafnodes += 1
            row.all.add(link)
            row.leafs.add(link)
    mesh = mesh_of(node)
    routed = mesh.traffic.by_account if mesh is not None else {}
    for name, row in rows.items():
        if name in routed:
            row.all.add(routed[name])
            row.routes.add(routed[name])
        closed = server.clients.closed_totals.get(name)
        if closed is not None:
            row.all.add(closed)
            row.slow_consumers = closed.slow_consumers
        row.subscriptions = server.accounts[name].index.count
    return [row.wire(name, account_name(node, name)) for name, row in rows.items()]


class _Sums:
    """Messages and bytes of several connections."""

    def __init__(self) -> None:
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0

    def add(self, traffic: ClientConnection | LeafConnection | Totals | Traffic) -> None:
        self.in_msgs += traffic.in_msgs
        self.in_bytes += traffic.in_bytes
        self.out_msgs += traffic.out_msgs
        self.out_bytes += traffic.out_bytes


class _Row:
    """Sums for one account. The clients' share is `all` less the others; there are no gateways."""

    def __init__(self) -> None:
        self.conns = self.leafnodes = self.subscriptions = self.slow_consumers = 0
        self.all, self.routes, self.leafs = _Sums(), _Sums(), _Sums()

    def wire(self, account: str, name: str) -> Json:
        routes, leafs = self.routes, self.leafs
        return {
            "acc": account,
            "name": name,
            "conns": self.conns,
            "leafnodes": self.leafnodes,
            "total_conns": self.conns + self.leafnodes,
            "num_subscriptions": self.subscriptions,
            "sent": {
                **data_stats(self.all.out_msgs, self.all.out_bytes),
                "gateways": data_stats(0, 0),
                "routes": data_stats(routes.out_msgs, routes.out_bytes),
                "leafs": data_stats(leafs.out_msgs, leafs.out_bytes),
            },
            "received": {
                **data_stats(self.all.in_msgs, self.all.in_bytes),
                "gateways": data_stats(0, 0),
                "routes": data_stats(routes.in_msgs, routes.in_bytes),
                "leafs": data_stats(leafs.in_msgs, leafs.in_bytes),
            },
            "slow_consumers": self.slow_consumers,
        }


def data_stats(messages: int, size: int) -> Json:
    return {"msgs": messages, "bytes": size}
