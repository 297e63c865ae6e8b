"""/accountz: all accounts of this server, or the exports, imports and mappings of one (nats-server's AccountInfo)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetcluster.config.account_options import (
    CHUNKED,
    SERVICE,
    SINGLETON,
    STREAM,
    STREAMED,
    ExportOptions,
    MappingOptions,
)
from jetcluster.config.import_rules import ServiceImport, StreamImport, SubjectMapping, system_exports
from jetcluster.model.times import rfc3339
from jetcluster.monitor.accstatz import account_names
from jetcluster.monitor.claims_view import of_account
from jetcluster.monitor.source import Json, Query, QueryError
from jetcluster.monitor.subsz import index_statistics
from jetcluster.monitor.view import leaf_links, now_text
from jetcluster.node.node import Node

if TYPE_CHECKING:
    from jetcluster.server.accounts.service_imports import Response

PING_IMPORTS = (
    ("$SYS.REQ.ACCOUNT.{}.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"),
    ("$SYS.REQ.ACCOUNT.{}.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ"),
    ("$SYS.REQ.ACCOUNT.{}.STATZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
)
_USER_INFO = ("$SYS.REQ.USER.{}.INFO", "$SYS.REQ.USER.INFO")
"""(the system account's subject, the account's own) of the user info: the system account's only import."""
_RESPONSES = {SINGLETON: "Singleton", STREAMED: "Streamed", CHUNKED: "Chunked"}


def shares(node: Node, account: str) -> Json:
    """Returns `mappings`, `exports`, `imports` and `responses`, without the empty ones."""
    options = (node.options.accounts or {}).get(account)
    system = node.options.system_account_name
    mappings = node.options.mappings if account == "$G" else options.mappings if options is not None else []
    exports = list(options.exports) if options is not None else []
    if account == system:
        exports += _exports_of_system(exports)
    found: Json = {
        "mappings": {mapping.source: _destinations(mapping, account) for mapping in mappings},
        "exports": [_export(export) for export in exports],
        "imports": _imports(node, account) + _imports_of_all(account, system),
        "responses": _responses(node, account),
    }
    return {key: value for key, value in found.items() if value}


def _exports_of_system(told: list[ExportOptions]) -> list[ExportOptions]:
    known = {export.subject for export in told}
    own = [*system_exports(), ExportOptions(SERVICE, "$SYS.REQ.USER.*.INFO")]
    return [export for export in own if export.subject not in known]


def _destinations(options: MappingOptions, account: str) -> list[Json]:
    """Weights are cumulative, as upstream shows them."""
    mapping = SubjectMapping(options, account)
    found: list[Json] = [
        {"subject": transform.destination.decode(), "weight": weight} for transform, weight in mapping.destinations
    ]
    for cluster, destinations in mapping.in_clusters.items():
        found += [
            {"subject": transform.destination.decode(), "weight": weight, "cluster": cluster}
            for transform, weight in destinations
        ]
    return found


def _export(export: ExportOptions) -> Json:
    found: Json = {"name": export.name} if export.name else {}
    found |= {"subject": export.subject, "type": export.kind}
    if export.token_required:
        found["token_req"] = True
    if export.kind == SERVICE:
        found["response_type"] = _RESPONSES[export.response_type]
    if export.latency is not None:
        found["service_latency"] = _latency(export)
    if export.accounts:
        found["approved_accounts"] = export.accounts
    return found


def _latency(export: ExportOptions) -> Json:
    assert export.latency is not None
    return {"sampling": export.latency.sampling or "headers", "results": export.latency.subject}


def _imports(node: Node, account: str) -> list[Json]:
    sharing = node.server.sharing
    imports = sharing.settled.imports.get(account) if sharing is not None else None
    if imports is None:
        return []
    return [_stream(stream) for stream in imports.streams] + [_service(service) for service in imports.services]


def _stream(imported: StreamImport) -> Json:
    return {
        "subject": imported.remote.decode(),
        "account": imported.account,
        "local_subject": imported.local.decode(),
        "type": STREAM,
        "invalid": False,
        "share": False,
        "tracking": False,
    }


def _service(imported: ServiceImport) -> Json:
    local = imported.local.decode()
    found = _as_service(imported.account, imported.remote.decode(), local, share=imported.options.share)
    if imported.export is not None and imported.export.latency is not None:
        found["latency"] = _latency(imported.export)
    return found


def _imports_of_all(account: str, system: str) -> list[Json]:
    wired = (_USER_INFO,) if account == system else (*PING_IMPORTS, _USER_INFO)
    return [_as_service(system, remote.format(account), local, share=local == _USER_INFO[1]) for remote, local in wired]


def _as_service(account: str, subject: str, local: str, *, share: bool) -> dict[str, Any]:
    return {
        "subject": subject,
        "account": account,
        "to": local,
        "local_subject": local,
        "type": SERVICE,
        "invalid": False,
        "share": share,
        "tracking": False,
    }


def _responses(node: Node, account: str) -> Json:
    """Returns the responses for which requests of other accounts wait, by reply subject."""
    sharing = node.server.sharing
    pending = {} if sharing is None else sharing.responses.awaited_in(account)
    return {key.decode(): _response(found) for key, found in pending.items()}


def _response(response: Response) -> Json:
    """Returns a response as a service import."""
    subject = response.reply.decode("utf-8", "replace")
    found = _as_service(response.importer.account, subject, response.subject.decode(), share=False)
    return found | {"tracking": response.measurement is not None}


def accountz(node: Node, query: Query) -> Json:
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


def account_info(node: Node, account: str) -> Json | None:
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
