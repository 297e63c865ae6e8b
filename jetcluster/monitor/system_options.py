"""Bodies of `$SYS.REQ` requests: JSON options of the endpoint, and a filter of servers.

Every option becomes the query parameter of the same meaning, so that both ways in end in the same view functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jetcluster.model.codec import syntax_text
from jetcluster.monitor.source import Json, Query, QueryError
from jetcluster.monitor.view import NodeView

MAX_BODY = 64 * 1024
_SUBS = {"subscriptions": "subs"}
_PAGE = {"offset": "offset", "limit": "limit"}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "CONNZ": {
        **_SUBS,
        **_PAGE,
        "sort": "sort",
        "auth": "auth",
        "cid": "cid",
        "state": "state",
        "user": "user",
        "acc": "acc",
        "mqtt_client": "mqtt_client",
        "filter_subject": "filter_subject",
    },
    "SUBSZ": {**_SUBS, **_PAGE, "account": "acc", "test": "test"},
    "ROUTEZ": _SUBS,
    "LEAFZ": {**_SUBS, "account": "acc"},
    "GATEWAYZ": {**_SUBS, "name": "gw_name", "accounts": "accs", "account_name": "acc_name"},
    "ACCOUNTZ": {"account": "acc"},
    "STATZ": {"accounts": "acc", "include_unused": "unused"},
    "JSZ": {
        **_PAGE,
        "account": "acc",
        "accounts": "accounts",
        "streams": "streams",
        "consumer": "consumers",
        "direct_consumer": "direct-consumers",
        "config": "config",
        "leader_only": "leader-only",
        "stream_leader_only": "stream-leader-only",
        "raft": "raft",
    },
    "HEALTHZ": {
        "js-enabled": "js-enabled",
        "js-enabled-only": "js-enabled-only",
        "js-server-only": "js-server-only",
        "js-meta-only": "js-meta-only",
        "safe-to-restart": "safe-to-restart",
        "account": "account",
        "stream": "stream",
        "consumer": "consumer",
        "details": "details",
    },
    "RAFTZ": {"account": "acc", "group": "group"},
    "IPQUEUESZ": {"all": "all", "filter": "queues"},
    "PROFILEZ": {"name": "name"},
}
"""Request kind -> option in JSON -> query parameter over HTTP."""


def decode(body: bytes) -> Json:
    """Options and filter as they came. Raises QueryError for what is no JSON object."""
    if not body.strip():
        return {}
    if len(body) > MAX_BODY:
        raise QueryError(f"request of more than {MAX_BODY} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QueryError(syntax_text(error) if isinstance(error, ValueError) else "exceeded max depth") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise QueryError("json: cannot unmarshal what is no object")
    return found


_INTEGERS = frozenset({"offset", "limit", "cid", "state"})
_BOOLEANS = frozenset({
    "subscriptions", "auth", "accounts", "streams", "consumer", "direct_consumer", "config", "leader_only",
    "stream_leader_only", "raft", "js-enabled", "js-enabled-only", "js-server-only", "js-meta-only",
    "safe-to-restart", "details", "include_unused", "all",
})  # fmt: skip
_GO: Mapping[type, str] = {str: "string", int: "number", float: "number", bool: "bool", list: "array", dict: "object"}
_STATES: Mapping[int, str] = {0: "open", 1: "closed", 2: "all"}


def query(kind: str, options: Mapping[str, Any]) -> Query:
    """Raises QueryError for a value of the wrong type."""
    found: dict[str, str] = {}
    for name, parameter in _NAMES.get(kind, {}).items():
        if name in options and options[name] is not None:
            found[parameter] = _text(kind, name, options[name])
    if options.get("subscriptions_detail") is True and "subscriptions" in _NAMES.get(kind, {}):
        found["subs"] = "detail"
    return found


def _text(kind: str, name: str, value: Any) -> str:
    lists = (kind, name) == ("STATZ", "accounts")
    wanted: type = list if lists else int if name in _INTEGERS else bool if name in _BOOLEANS else str
    given = type(value)
    if given is not wanted or (lists and not all(isinstance(item, str) for item in value)):
        raise QueryError(f"json: cannot unmarshal {_GO[given]} into field {name} of type {_GO[wanted]}")
    if lists:
        return ",".join(value)
    if name == "state":
        return _STATES.get(value, str(value))
    return str(value).lower() if wanted is bool else str(value)


def is_for(node: NodeView, options: Mapping[str, Any]) -> bool:
    """True when a request to all servers wants an answer of this one. Names match in part unless `exact_match`."""
    own = node.options
    exact = options.get("exact_match") is True
    for key, value in (
        ("server_name", node.server.name),
        ("cluster", own.cluster_name if own.is_clustered else ""),
        ("host", own.host),
    ):
        wanted = options.get(key)
        if wanted and (wanted != value if exact else str(wanted) not in value):
            return False
    tags = options.get("tags")
    if isinstance(tags, list) and not {str(tag).lower() for tag in tags} <= {tag.lower() for tag in own.server_tags}:
        return False
    return not options.get("domain") or options["domain"] == own.domain
