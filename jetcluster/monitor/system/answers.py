"""Answers to `$SYS.REQ` requests, from the views that the HTTP endpoints show. Loaded on the first request.

The body of a request has JSON options of the endpoint, and a filter of servers. Every option becomes the query
parameter of the same meaning, so that both ways end in the same view functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jetcluster.budget import BusyError
from jetcluster.errors import CallerError
from jetcluster.logs import get_logger
from jetcluster.model.advisory import Advisories, Event
from jetcluster.model.codec import dumps, encoding, syntax_text
from jetcluster.monitor.accountz import account_info
from jetcluster.monitor.accstatz import account_names, account_stats, account_statz
from jetcluster.monitor.jsz import account_detail
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import BUSY, Json, NotAskedError, Query, QueryError
from jetcluster.monitor.system.events import CONNECTIONS
from jetcluster.monitor.system.requests import BESIDE, SystemRequest
from jetcluster.monitor.varz import statsz
from jetcluster.monitor.view import ServerBlock
from jetcluster.node.node import Node
from jetcluster.protocol.bus import Origin
from jetcluster.server.client.connection import ClientConnection

if TYPE_CHECKING:
    from jetcluster.config.account_options import PermissionOptions

MAX_BODY_BYTES = 64 * 1024


def _same(*names: str) -> Mapping[str, str]:
    return {name: name for name in names}


_SUBS = {"subscriptions": "subs"}
_NAMES: Mapping[str, Mapping[str, str]] = {
    "CONNZ": {
        **_SUBS,
        **_same("offset", "limit", "sort", "auth", "cid", "state", "user", "acc", "mqtt_client", "filter_subject"),
    },
    "SUBSZ": {**_SUBS, **_same("offset", "limit"), "account": "acc", "test": "test"},
    "ROUTEZ": _SUBS,
    "LEAFZ": {**_SUBS, "account": "acc"},
    "GATEWAYZ": {**_SUBS, "name": "gw_name", "accounts": "accs", "account_name": "acc_name"},
    "ACCOUNTZ": {"account": "acc"},
    "STATZ": {"accounts": "acc", "include_unused": "unused"},
    "JSZ": {
        **_same("offset", "limit"),
        "stream_offset": "stream-offset",  # ours, as is the next
        "stream_limit": "stream-limit",
        "account": "acc",
        **_same("accounts", "streams"),
        "consumer": "consumers",
        "direct_consumer": "direct-consumers",
        "config": "config",
        "leader_only": "leader-only",
        "stream_leader_only": "stream-leader-only",
        "raft": "raft",
        "lag": "lag",  # ours
    },
    "HEALTHZ": _same(
        "js-enabled", "js-enabled-only", "js-server-only", "js-meta-only", "leaf-remotes-connected", "safe-to-restart",
        "account", "stream", "consumer", "details",
    ),
    "RAFTZ": {"account": "acc", "group": "group"},
    "IPQUEUESZ": {"all": "all", "filter": "queues"},
    "PROFILEZ": _same("name"),
    "FINDINGS": _same("cluster"),
    "HISTORY": _same("seconds", "points", "columns"),
}  # fmt: skip
"""Request kind -> option in JSON -> query parameter over HTTP."""


def decode(body: bytes) -> Json:
    """Returns options and filter as they came. Raises QueryError for a body that is no JSON object."""
    if not body.strip():
        return {}
    if len(body) > MAX_BODY_BYTES:
        raise QueryError(f"request of more than {MAX_BODY_BYTES} bytes")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QueryError(syntax_text(error) if isinstance(error, ValueError) else "exceeded max depth") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise QueryError("json: cannot unmarshal what is no object")
    return found


_INTEGERS = frozenset({"offset", "limit", "stream_offset", "stream_limit", "cid", "state", "seconds", "points"})
_LISTS = frozenset({("STATZ", "accounts"), ("HISTORY", "columns")})
_BOOLEANS = frozenset({
    "subscriptions", "auth", "accounts", "streams", "consumer", "direct_consumer", "config", "leader_only",
    "stream_leader_only", "raft", "js-enabled", "js-enabled-only", "js-server-only", "js-meta-only",
    "leaf-remotes-connected", "safe-to-restart", "details", "include_unused", "all", "cluster", "lag",
})  # fmt: skip
_TEXTS = frozenset({("HEALTHZ", "consumer")})
"""Options that are a text for this kind, and of another type for others."""
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
    lists = (kind, name) in _LISTS
    wanted: type = list if lists else int if name in _INTEGERS else bool if name in _BOOLEANS else str
    if (kind, name) in _TEXTS:
        wanted = str
    given = type(value)
    if given is not wanted or (lists and not all(isinstance(item, str) for item in value)):
        raise QueryError(f"json: cannot unmarshal {_GO[given]} into field {name} of type {_GO[wanted]}")
    if lists:
        return ",".join(value)
    if name == "state":
        return _STATES.get(value, str(value))
    return str(value).lower() if wanted is bool else str(value)


def is_for(node: Node, options: Mapping[str, Any]) -> bool:
    """True when a request to all servers asks this one to answer. Names match in part unless `exact_match`."""
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


log = get_logger("monitor")

MAX_REPLY_BYTES = 8 * 1024 * 1024
"""Bytes; pages (`offset`, `limit`) get at the rest."""
TOO_LARGE = f"the reply has more than {MAX_REPLY_BYTES} bytes: ask for a page with offset and limit, or for one account"


class SystemRequestError(CallerError):
    """`code` and text of the `error` object."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class SystemAnswers:
    """Answers to requests at `$SYS.REQ`."""

    def __init__(self, node: Node, block: ServerBlock, reload: Callable[[], str]) -> None:
        self._node = node
        self._block = block
        self._reload_options = reload
        self._advisories = Advisories(node.clock, node.server.rng)
        self._source = NodeSource(node)
        self._commands: dict[str, Callable[[Json], None]] = {
            "KICK": self._kick,
            "LDM": self._lame_duck,
            "RELOAD": self._reload,
        }

    async def answer(self, request: SystemRequest) -> bytes:
        """Returns the reply; b"" when this server has none. A defect becomes an error in the reply."""
        try:
            options = decode(request.body)
            # FINDINGS of all servers: elsewhere `cluster` is a name.
            filters = {**options, "cluster": ""} if options.get("cluster") is True else options
            if request.scope in ("ping", "own") and not is_for(self._node, filters):
                return b""
            reply = await self._reply(request, options)
            if reply is None:
                return b""
            encoded = await self._source.run(request.origin.account, encoding(reply))
        except NotAskedError:
            return b""
        except QueryError as error:
            return self._error(400, str(error))
        except SystemRequestError as error:
            return self._error(error.code, str(error))
        except BusyError:
            return self._error(503, BUSY)
        except Exception:
            log.exception("system request failed", kind=request.kind)
            return self._error(500, "internal error, see the log")
        return encoded if len(encoded) <= MAX_REPLY_BYTES else self._error(500, TOO_LARGE)

    def _error(self, code: int, text: str) -> bytes:
        return dumps({"server": self._block.make(), "error": {"code": code, "description": text}})

    async def _reply(self, request: SystemRequest, options: Json) -> Json | None:
        kind = request.kind
        if request.scope == "user":
            return self._data(_user_info(request.origin, self._node.clock.time_ns() / 1e9))
        if request.scope in ("account", "own"):
            return await self._about_account(request, options)
        if kind == "IDZ":
            block = self._block.make()
            return {key: block[key] for key in ("name", "host", "id")}
        if kind == "STATSZ":
            return {"server": self._block.make(), "statsz": statsz(self._node)}
        if kind == "HEALTHZ":
            health = await self._source.healthz(query(kind, options))
            return self._data({"status": health.body["status"], "status_code": health.status, **health.body})
        if kind in BESIDE:
            make = self._source.findings if kind == "FINDINGS" else self._source.history
            return self._data(await make(request.origin.account, query(kind, options)))
        if kind in self._commands:
            self._commands[kind](options)
            return {"server": self._block.make()}
        return await self._view(request, query(kind, options))

    async def _view(self, request: SystemRequest, parameters: Query) -> Json:
        """Returns the answer of a page. Errors have nats-server's codes: 500 for a query that the page refuses, 400
        only for one that cannot be read."""
        steps = self._source.in_steps(request.kind.lower(), parameters)
        try:
            return self._data(await self._source.run(request.origin.account, steps))
        except NotAskedError:
            raise
        except QueryError as error:
            raise SystemRequestError(500, str(error)) from error

    def _data(self, data: Json) -> Json:
        return {"server": self._block.make(), "data": data}

    async def _about_account(self, request: SystemRequest, options: Json) -> Json | None:
        kind, account = request.kind, request.account
        if kind == "STATZ":
            return self._statz(request, options)
        if kind == "CONNS":
            stats = [stat for stat in account_stats(self._node, [account]) if stat["total_conns"]]
            return self._connections_event(stats[0]) if stats else None
        if kind == "INFO":
            info = account_info(self._node, account)
            if info is None:
                raise SystemRequestError(500, f"Account {account} does not exist")
            return self._data(info)
        if kind == "JSZ":
            return await self._jetstream_of(request, query(kind, options))
        parameters = {**query(kind, options), "acc": account}
        if kind == "SUBSZ":
            parameters["subs"] = "1"
        return await self._view(request, parameters)

    async def _jetstream_of(self, request: SystemRequest, parameters: Query) -> Json | None:
        """Returns no reply where JetStream does not run yet."""
        account = request.account
        if account not in account_names(self._node):
            raise SystemRequestError(500, f'account "{account}" not found')
        if self._node.jetstream is None or account not in self._node.jetstream.apis:
            raise SystemRequestError(500, f'account "{account}" not jetstream enabled')
        steps = account_detail(self._node, account, parameters)
        found = await self._source.run(request.origin.account, steps)
        return None if found is None else self._data(found)

    def _connections_event(self, stat: Json) -> Json:
        """The event that is published when the number changes (`system.events`)."""
        event = Event(b"", CONNECTIONS, {"server": self._block.make(), **stat})
        found: Json = json.loads(self._advisories.render(event))
        return found

    def _statz(self, request: SystemRequest, options: Json) -> Json | None:
        """Returns no reply about accounts without a connection here, except one that asks about itself."""
        named = options.get("accounts")
        if request.account:
            names: set[str] | None = {request.account}
        else:
            names = {str(name) for name in named} if isinstance(named, list) and named else None
        unused = options.get("include_unused") is True
        found = account_statz(self._node, names, unused=unused)
        return self._data(found) if found["account_statz"] else None

    # ---- commands

    def _client(self, options: Json, unknown: str) -> ClientConnection:
        cid = options.get("cid")
        client = self._node.server.clients.get(cid) if isinstance(cid, int) else None
        if client is None:
            raise SystemRequestError(500, unknown)
        return client

    def _kick(self, options: Json) -> None:
        self._client(options, "no such client or leafnode id").close("Kicked")

    def _lame_duck(self, options: Json) -> None:
        """Informs one client that this server is going away; the client connects elsewhere by itself."""
        self._client(options, "no such client id").send_lame_duck()

    def _reload(self, options: Json) -> None:
        refusal = self._reload_options()
        if refusal:
            raise SystemRequestError(500, refusal)


def _user_info(origin: Origin, now: float) -> Json:
    account, client = origin.account, origin if isinstance(origin, ClientConnection) else None
    session = None if client is None else client.session.limits
    found: Json = {"user": "" if client is None else client.user, "account": account, "account_name": account}
    if session is not None:
        found["account_name"] = session.account_name or account
        if session.name:
            found["user_name"] = session.name
    if client is not None and client.permissions is not None:
        found["permissions"] = _permissions(client.permissions.options)
    if session is not None and session.expires:
        found["expires"] = max(int(session.expires - now), 0) * 10**9
    return found


def _permissions(options: PermissionOptions) -> Json:
    found: Json = {}
    for name, lists in (("publish", options.publish), ("subscribe", options.subscribe)):
        shown = {key: listed for key, listed in (("allow", lists.allow), ("deny", lists.deny)) if listed is not None}
        if shown:
            found[name] = shown
    if options.responses is not None:
        found["responses"] = {"max": options.responses.max_messages, "ttl": int(options.responses.expires * 1e9)}
    return found
