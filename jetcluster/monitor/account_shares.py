"""The exports, imports and mappings of an account as /accountz shows them (names and order of nats-server's
AccountInfo).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetcluster.config.import_rules import ServiceImport, StreamImport, system_exports
from jetcluster.config.mapping_rules import Mapping
from jetcluster.config.sharing import CHUNKED, SERVICE, SINGLETON, STREAM, STREAMED, ExportOptions, MappingOptions
from jetcluster.monitor.source import Json
from jetcluster.monitor.view import NodeView

if TYPE_CHECKING:
    from jetcluster.server.accounts.service_imports import Response

PING_IMPORTS = (
    ("$SYS.REQ.ACCOUNT.{}.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"),
    ("$SYS.REQ.ACCOUNT.{}.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ"),
    ("$SYS.REQ.ACCOUNT.{}.STATZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
)
_USER_INFO = ("$SYS.REQ.USER.{}.INFO", "$SYS.REQ.USER.INFO")
"""(the system account's subject, the account's own) of what every account may ask; the system account this alone."""
_RESPONSES = {SINGLETON: "Singleton", STREAMED: "Streamed", CHUNKED: "Chunked"}


def shares(node: NodeView, account: str) -> Json:
    """`mappings`, `exports`, `imports` and `responses`; those that are empty are left out."""
    options = (node.options.accounts or {}).get(account)
    system = node.options.system_account_name
    mappings = node.options.mappings if account == "$G" else options.mappings if options is not None else []
    exports = list(options.exports) if options is not None else []
    if account == system:
        exports += _exports_of_system(exports)
    found: Json = {
        "mappings": {mapping.source: _destinations(mapping) for mapping in mappings},
        "exports": [_export(export) for export in exports],
        "imports": _imports(node, account) + _imports_of_all(account, system),
        "responses": _responses(node, account),
    }
    return {key: value for key, value in found.items() if value}


def _exports_of_system(told: list[ExportOptions]) -> list[ExportOptions]:
    known = {export.subject for export in told}
    own = [*system_exports(), ExportOptions(SERVICE, "$SYS.REQ.USER.*.INFO")]
    return [export for export in own if export.subject not in known]


def _destinations(options: MappingOptions) -> list[Json]:
    """Weights are cumulative, as upstream shows them."""
    mapping = Mapping(options)
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


def _imports(node: NodeView, account: str) -> list[Json]:
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


def _responses(node: NodeView, account: str) -> Json:
    """The responses that requests of other accounts wait for, by reply subject."""
    sharing = node.server.sharing
    pending = {} if sharing is None else sharing.responses.awaited_in(account)
    return {key.decode(): _response(found) for key, found in pending.items()}


def _response(response: Response) -> Json:
    """One `server.accounts.service_imports.Response`, shown as a service import."""
    subject = response.reply.decode("utf-8", "replace")
    found = _as_service(response.importer.account, subject, response.subject.decode(), share=False)
    return found | {"tracking": response.measurement is not None}
