"""The pages' view of JWTs: of operators, of an account, of a connection's user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetcluster.model.times import rfc3339
from jetcluster.monitor.source import Json
from jetcluster.node.node import Node
from jetcluster.server.client.clients import ClosedClient

if TYPE_CHECKING:
    from jetcluster.auth.operator_mode import KnownAccount
    from jetcluster.config.claims.token import Token
    from jetcluster.server.client.connection import ClientConnection

_LAST_SECOND = 253_402_300_799
"""The last second of the year 9999, the last one that has a text."""
_ORDER = ("aud", "exp", "jti", "iat", "iss", "name", "nbf", "sub", "nats")


def known_account(node: Node, account: str) -> KnownAccount | None:
    """Returns None outside of operator mode and for an account without a JWT here."""
    known = None if node.operator is None else node.operator.known.find(account)
    return known if known is not None and known.claims.token.text else None


def of_account(node: Node, account: str) -> Json:
    """The fields of /accountz for an account with a JWT: they replace those of an account of the configuration, or
    follow them."""
    known = known_account(node, account)
    if known is None:
        return {}
    token = known.claims.token
    found: Json = {
        "update_time": rfc3339(known.updated_ns),
        "expired": known.expired,
        "jwt": token.text,
        "issuer_key": token.issuer,
        "name_tag": token.name or account,
    }
    if token.tags:
        found["tags"] = list(token.tags)
    found["decoded_jwt"] = decoded(token)
    problems = [
        problem for problem in (token.time_problem(node.clock.time_ns() / 1e9), *known.claims.problems()) if problem
    ]
    if problems:
        found["validation_result_jwt"] = [
            {"description": text, "blocking": not _is_of_time(text), "time_check": _is_of_time(text)}
            for text in problems
        ]
    revoked = known.claims.revocations
    if revoked:
        found["revoked_user"] = {
            key: rfc3339(min(max(second, 0), _LAST_SECOND) * 10**9) for key, second in revoked.items()
        }
    return found


def account_name(node: Node, account: str) -> str:
    """Returns the readable name: the one in the account's JWT, or `account` without one."""
    known = known_account(node, account)
    return account if known is None else known.claims.token.name or account


def of_connection(connection: ClientConnection | ClosedClient) -> Json:
    """`session` of a client whose user has a JWT."""
    session = None if isinstance(connection, ClosedClient) else connection.session.limits
    if session is None or not session.issuer:
        return {}
    found: Json = {"jwt": session.jwt} if session.jwt else {}
    found |= {"issuer_key": session.issuer, "name_tag": session.account_name}
    if session.tags:
        found["tags"] = list(session.tags)
    return found


def of_operators(node: Node) -> Json:
    operators = node.options.operator.operators
    if not operators:
        return {}
    return {
        "trusted_operators_jwt": [operator.token.text for operator in operators],
        "trusted_operators_claim": [decoded(operator.token) for operator in operators],
    }


def decoded(token: Token) -> Json:
    values = token.top.raw()
    return {key: values[key] for key in _ORDER if key in values}


def _is_of_time(problem: str) -> bool:
    return problem in ("claim is expired", "claim is not yet valid")
