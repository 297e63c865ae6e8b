"""Checks of all options together: contradictions, values out of range, and operator mode.

A start and a reload call `problem_of` after the file and the flags are read; `-t` does not, as in nats-server. Texts
are nats-server's where it has the check.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jetcluster.config.links_block import shown
from jetcluster.config.nkeys import is_key
from jetcluster.config.options import (
    CACHE,
    FULL,
    MEMORY,
    URL,
    LeafOptions,
    LeafRemoteOptions,
    OperatorOptions,
    Options,
    WebSocketOptions,
)
from jetcluster.config.reader import without_secret
from jetcluster.model import durations

if TYPE_CHECKING:
    from jetcluster.config.claims.operator import OperatorClaims

_OWN_HEADERS = frozenset(
    {"upgrade", "connection", "sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-protocol"}
)
"""Headers of the WebSocket handshake's response that the configuration must not set."""


def problem_of(options: Options) -> str | None:
    """Returns the first reason why a server cannot run with these options; None: it can."""
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
        if problem := _problem_of_denied(remote):
            return problem
    for user in leafnodes.users:
        if user.account not in known:
            return f'cannot find local account "{user.account}" specified in leafnode authorization'
    return None


def _problem_of_denied(remote: LeafRemoteOptions) -> str | None:
    """Names a function in the lists that means no account there. The other end's is known later."""
    if not any("{{" in subject for subject in (*remote.deny_imports, *remote.deny_exports)):
        return None
    from jetcluster.model.account_hash import AccountNames  # lazy: with it come all transforms
    from jetcluster.model.transforms import TransformError

    names = AccountNames(remote.account, leaf_remote=None)
    for key, listed in (("deny_imports", remote.deny_imports), ("deny_exports", remote.deny_exports)):
        for subject in listed:
            try:
                names.expand(subject)
            except TransformError as error:
                return f'invalid {key} for remote {shown(remote)}: permission subject "{subject}": {error}'
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
    """Checks the port. `users`: the configured names; `has_jwts`: users log in with JWTs."""
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


def problem_of_operators(options: Options) -> str | None:
    """Returns the first reason why a server cannot run in operator mode with these options; None: it can, or operator
    mode is off."""
    operator = options.operator
    if not operator.operators:
        return "default sentinel requires operators and accounts" if operator.default_sentinel else None
    return (
        _problem_of_sentinel(operator)
        or _problem_of_other_blocks(operator, options)
        or _problem_of_system_account(operator, options)
        or next(filter(None, map(_problem_of_version, operator.operators)), None)
        or _problem_of_keys(operator)
    )


def _problem_of_sentinel(operator: OperatorOptions) -> str | None:
    if not operator.default_sentinel:
        return None
    from jetcluster.config.claims.token import ClaimsError
    from jetcluster.config.claims.user import decode_user

    try:
        user = decode_user(operator.default_sentinel)
    except ClaimsError:
        return "default sentinel JWT not valid"
    if not user.rights.bearer and not (user.issuer_account and user.rights.is_blank):
        return "default sentinel must be a bearer token"
    return None


def _problem_of_other_blocks(operator: OperatorOptions, options: Options) -> str | None:
    """Checks for blocks that cannot be combined with operators."""
    if operator.resolver is None:
        return "operators require an account resolver to be configured"
    if any(not is_key("A", name) for name in options.accounts or ()):
        return "operators do not allow Accounts to be configured directly"
    if options.authorization.users:
        return "operators do not allow users to be configured directly"
    if operator.trusted_keys:
        return "conflicting options for 'TrustedKeys' and 'TrustedOperators'"
    if options.no_auth_user or options.websocket.no_auth_user:
        return "no_auth_user not compatible with Trusted Operator"
    if len(options.leafnodes.users) > 1:
        return "operator mode does not allow specifying users in leafnode config"
    for remote in options.leafnodes.remotes:
        if not is_key("A", remote.account):
            return (
                "operator mode requires account nkeys in remotes. Please add an `account` key to each remote in "
                "your `leafnodes` section, to assign it to an account. Each account value should be a 56 character "
                "public key, starting with the letter 'A'"
            )
    return None


def _problem_of_system_account(operator: OperatorOptions, options: Options) -> str | None:
    system = options.system_account
    told = [claims.system_account for claims in operator.operators if claims.system_account]
    if system and told and system not in told:
        return "system_account in config and operator JWT must be identical"
    assert operator.resolver is not None
    if not system and operator.resolver.kind in (FULL, CACHE):
        return (
            "using nats based account resolver - the system account needs to be specified in configuration or the "
            "operator jwt"
        )
    if system and not is_key("A", system):
        return "error resolving system account: will only fetch valid account keys"
    return _problem_of_known_system_account(operator, system) if system and operator.resolver.kind == MEMORY else None


def _problem_of_known_system_account(operator: OperatorOptions, name: str) -> str | None:
    from jetcluster.clock import SystemClock
    from jetcluster.config.claims.account import verified_account
    from jetcluster.config.claims.token import ClaimsError

    if name not in operator.preload:
        return "error resolving system account: account missing"
    try:
        verified_account(name, operator.preload[name], operator.keys, SystemClock().time_ns() / 1e9)
    except ClaimsError as error:
        return f"error resolving system account: {error}"
    return None


def _problem_of_keys(operator: OperatorOptions) -> str | None:
    for key in operator.keys:
        if not is_key("O", key):
            return f'trusted Keys "{key}" are required to be a valid public operator nkey'
    for key in operator.pinned_accounts or ():
        if not is_key("A", key):
            return f'pinned account key "{key}" is not a valid public account nkey'
    if operator.resolver is not None and operator.resolver.kind == URL and operator.preload:
        return "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR"
    return None


def _problem_of_version(operator: OperatorClaims) -> str | None:
    """Checks `assert_server_version` of an operator against the version that this server reports."""
    from jetcluster import REPORTED_VERSION

    wanted, name = operator.server_version, operator.token.subject
    if not wanted:
        return None
    parts = wanted.split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        why = "asserted server version must be of the form <major>.<minor>.<update>"
        return f"operator {name} expects version {wanted} got error instead: {why}"
    for label, text, own in zip(("major", "minor", "update"), parts, REPORTED_VERSION.split("."), strict=False):
        if int(text) > int(own):
            return f"operator {name} expected {label} version {int(text)} > server {label} version {int(own)}"
        if int(text) < int(own):
            break
    return None


MAX_PORT = 65535
COMPRESSION_MODES = frozenset(
    [
        *("", "off", "disabled", "false", "on", "enabled", "true", "accept", "not_supported", "not supported"),
        *("s2_uncompressed", "s2_fast", "s2_better", "s2_best", "s2_auto", "fast", "better", "best", "auto"),
    ]
)


def problem_of_values(options: Options) -> str | None:
    """Returns the first value that is out of its range, as an error text; None: there is none."""
    return (
        _problem_of_ports(options)
        or _problem_of_routes(options)
        or _problem_of_paths(options)
        or _problem_of_addresses(options)
        or _problem_of_domain(options.jetstream.domain)
        or _problem_of_compression(options)
    )


def _problem_of_ports(options: Options) -> str | None:
    """Checks every port except that of clients, whose error is reported when it is opened."""
    for port, what in (
        (options.http_port, "Can't start monitoring: can't listen to the monitor port"),
        (options.https_port, "Can't start monitoring: can't listen to the monitor port"),
        (options.cluster.port, "Error listening on router port"),
        (options.leafnodes.port, "Error listening on leafnode port"),
        (options.websocket.port, "Unable to listen for websocket connections"),
    ):
        if not -1 <= port <= MAX_PORT:
            return f"{what}: listen tcp: address {port}: invalid port"
    return None


def _problem_of_routes(options: Options) -> str | None:
    for url in options.cluster.routes:
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            if parts.hostname and parts.port:
                continue
            why = "a route needs a host and a port"
        except ValueError as error:
            why = str(error)
        return f'error parsing route url ["{without_secret(url)}"]: {why}'
    return None


def _problem_of_paths(options: Options) -> str | None:
    paths = {
        "store_dir": options.jetstream.store_dir,
        "pid_file": options.pid_file,
        "ports_file_dir": options.ports_file_dir,
        "log_file": options.log_file,
    }
    broken = [name for name, path in paths.items() if "\0" in path]
    return f"invalid {broken[0]}: a path has no NUL character" if broken else None


def _problem_of_addresses(options: Options) -> str | None:
    for name, address in (
        ("ClientAdvertise", options.client_advertise),
        ("cluster advertise", options.cluster.cluster_advertise),
        ("leafnode advertise", options.leafnodes.advertise),
        ("websocket advertise", options.websocket.advertise),
    ):
        if address and not is_host_and_port(address):
            return f"invalid {name} value of {address}, it must be host or host:port"
    return None


def is_host_and_port(address: str) -> bool:
    """Returns True for `host`, `host:port`, `1.2.3.4:5`, `[::1]:5` and `::1`."""
    if any(c.isspace() or not c.isprintable() or c in '"\\/@' for c in address):
        return False
    if address.startswith("["):
        host, end, port = address[1:].partition("]")
        return bool(host and end) and (not port or (port[0] == ":" and _is_port(port[1:])))
    host, colon, port = address.partition(":")
    if ":" in port:  # an IPv6 address without port
        return True
    return bool(host) and (not colon or _is_port(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text.lstrip("0")) <= 5 and 0 < int(text) <= MAX_PORT


def _problem_of_domain(domain: str) -> str | None:
    if any(c in domain for c in ".*>"):
        return "invalid domain name: may not contain ., * or >"
    if any(c.isspace() or c == "\0" for c in domain):
        return f'invalid domain name: derived "$JS.{domain}.API.>" is not a valid subject'
    return None


def _problem_of_compression(options: Options) -> str | None:
    for mode in (options.cluster.compression, options.leafnodes.compression):
        if mode.lower() not in COMPRESSION_MODES:
            return f'unsupported compression mode "{mode}"'
    return None
