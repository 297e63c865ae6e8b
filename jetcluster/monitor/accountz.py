"""/accountz: the accounts of this server, or one of them in detail."""

from __future__ import annotations

from jetcluster.model.times import rfc3339
from jetcluster.monitor.account_shares import shares
from jetcluster.monitor.accstatz import account_names
from jetcluster.monitor.claims_view import of_account
from jetcluster.monitor.source import Json, Query, QueryError
from jetcluster.monitor.subsz import index_statistics
from jetcluster.monitor.view import NodeView, leaf_links, now_text


def accountz(node: NodeView, query: Query) -> Json:
    """Raises QueryError for an account that does not exist."""
    found: Json = {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "system_account": node.options.system_account_name,
    }
    account = query.get("acc", "")
    if not account:
        return found | {"accounts": account_names(node)}
    detail = account_info(node, account)
    if detail is None:
        raise QueryError(f"Account {account} does not exist")
    return found | {"account_detail": detail}


def account_info(node: NodeView, account: str) -> Json | None:
    if account not in account_names(node):
        return None
    server, system = node.server, node.options.system_account_name
    router = server.accounts[account]
    apis = node.jetstream.apis if node.jetstream is not None else {}
    found: Json = {"account_name": account, "update_time": rfc3339(server.start_ns)}
    if account == system:
        found["is_system"] = True
    found |= {
        "expired": False,
        "complete": True,
        "jetstream_enabled": account in apis,
        "leafnode_connections": sum(link.account == account for link in leaf_links(node)),
        "client_connections": sum(client.account == account for client in server.clients),
        "subscriptions": router.index.count,
    }
    found |= shares(node, account)
    found |= {"name_tag": account, **of_account(node, account)}
    found["sublist_stats"] = index_statistics(node, [router])
    return found
