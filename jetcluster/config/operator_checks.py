"""Options of operator mode that no server can run with. Rules and texts are nats-server's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.config.nkeys import is_key
from jetcluster.config.operator_options import CACHE, FULL, MEMORY, URL, OperatorOptions
from jetcluster.config.options import Options

if TYPE_CHECKING:
    from jetcluster.config.claims.operator import OperatorClaims


def problem_of_operators(options: Options) -> str | None:
    """The first reason why a server cannot run in operator mode with these options; None: it can, or it is not on."""
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
    """Blocks that have no place beside operators."""
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
    """`assert_server_version` of an operator, against the version that this server reports."""
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
