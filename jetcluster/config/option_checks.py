"""Options that contradict each other, so that no server can run with them.

A start and a reload call `problem_of` once file and flags are read; `-t` does not, as with nats-server.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from jetcluster.config.operator_checks import problem_of_operators
from jetcluster.config.options import LeafOptions, Options, WebSocketOptions
from jetcluster.config.value_checks import problem_of_values
from jetcluster.model import durations

_OWN_HEADERS = frozenset(
    {"upgrade", "connection", "sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol"}
)
"""Headers of the answer that opens a WebSocket, which the configuration may not set."""


def problem_of(options: Options) -> str | None:
    """The first reason why a server cannot run with these options, in nats-server's words; None: it can."""
    problem = (
        _problem_of_bounds(options)
        or _problem_of_cluster(options)
        or problem_of_values(options)
        or problem_of_operators(options)
    )
    if problem is None and not options.operator.operators:
        accounts = ["$G", options.system_account_name, *(options.accounts or ()), *options.operator.preload]
        problem = _problem_of_leafnodes(options.leafnodes, accounts) or _problem_of_users(options)
    return problem or _problem_of_websocket(options)


def _problem_of_bounds(options: Options) -> str | None:
    if options.max_payload > options.max_pending:
        return f"max_payload ({options.max_payload}) cannot be higher than max_pending ({options.max_pending})"
    if options.lame_duck_grace_period >= options.lame_duck_duration:
        grace, total = (
            durations.render(int(s * 1e9)) for s in (options.lame_duck_grace_period, options.lame_duck_duration)
        )
        return f"lame duck grace period ({grace}) should be strictly lower than lame duck duration ({total})"
    return None


def _problem_of_cluster(options: Options) -> str | None:
    if options.cluster.routes and not options.is_clustered:
        return "solicited routes require cluster capabilities, e.g. --cluster"
    if options.jetstream.enabled and options.is_clustered:
        if not options.server_name:
            return "jetstream cluster requires `server_name` to be set"
        if not options.cluster.name:
            return "jetstream cluster requires `cluster.name` to be set"
    return None


def _problem_of_leafnodes(leafnodes: LeafOptions, accounts: Iterable[str]) -> str | None:
    known = set(accounts)
    for remote in leafnodes.remotes:
        if remote.account not in known:
            return f'cannot find local account "{remote.account}" specified in leafnode remote'
    for user in leafnodes.users:
        if user.account not in known:
            return f'cannot find local account "{user.account}" specified in leafnode authorization'
    return None


def _problem_of_users(options: Options) -> str | None:
    known = {**(options.accounts or {}), **options.operator.preload}
    if options.system_account and options.system_account not in known:
        return "error resolving system account: account missing"
    return _problem_of_no_auth_user(options, options.no_auth_user) if options.no_auth_user else None


def _problem_of_no_auth_user(options: Options, name: str) -> str | None:
    users = options.users_by_name()
    if not users:
        return f'no_auth_user: "{name}" present, but users/nkeys are not defined'
    if name not in users:
        return f'no_auth_user: "{name}" not present as user or nkey in authorization block or account configuration'
    return None


def _problem_of_websocket(options: Options) -> str | None:
    websocket = options.websocket
    if not websocket.port:
        return None
    problem = _problem_of_websocket_port(websocket, options.users_by_name(), has_jwts=options.operator.is_on)
    if problem is None and websocket.no_auth_user:
        problem = _problem_of_no_auth_user(options, websocket.no_auth_user)
    return problem


def _problem_of_websocket_port(websocket: WebSocketOptions, users: Container[str], *, has_jwts: bool) -> str | None:
    """`users`: the names that are configured; `has_jwts`: users come with JWTs."""
    if websocket.tls is None and not websocket.no_tls:
        return "websocket requires TLS configuration"
    for origin in websocket.allowed_origins:
        if why := _problem_of_url(origin):
            return f'unable to parse allowed origin: parse "{origin}": {why}'
    if users and websocket.authorization.user:
        return "websocket authentication username not compatible with presence of users/nkeys"
    if users and websocket.authorization.token:
        return "websocket authentication token not compatible with presence of users/nkeys"
    if websocket.jwt_cookie and not has_jwts:
        return (
            "trusted operators or trusted keys configuration is required for JWT authentication via cookie "
            f'"{websocket.jwt_cookie}"'
        )
    for name in websocket.headers:
        if name.lower() in _OWN_HEADERS:
            return f'websocket: invalid header "{name}" not allowed'
    return None


def _problem_of_url(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        return str(error)
    try:
        parts.port  # noqa: B018 - raises
    except ValueError:
        return f'invalid port ":{parts.netloc.rpartition(":")[2]}" after host'
    return ""
