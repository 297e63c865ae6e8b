"""/connz: client connections, open and closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.budget import Steps
from jetcluster.config.tls_options import go_suite
from jetcluster.model.times import rfc3339
from jetcluster.monitor import subsz
from jetcluster.monitor.claims_view import of_connection
from jetcluster.monitor.source import Json, Query, QueryError, flag, identifier, number, subs_detail
from jetcluster.monitor.view import figures, now_text, rtt, uptime, wall_time
from jetcluster.node.node import Node
from jetcluster.protocol import subjects
from jetcluster.server.client.clients import ClosedClient
from jetcluster.server.client.connection import ClientConnection

if TYPE_CHECKING:
    import asyncio
    import ssl

DEFAULT_LIMIT = 1024
Shown = ClientConnection | ClosedClient


def _subscription_count(connection: Shown) -> int:
    held = connection.subscriptions
    return held if isinstance(held, int) else len(held)


def _pending(connection: Shown) -> int:
    return 0 if isinstance(connection, ClosedClient) else connection.pending


def _last_activity(connection: Shown) -> float:
    return 0.0 if isinstance(connection, ClosedClient) else connection.last_activity


def _stop(connection: Shown) -> int:
    return connection.stop_ns if isinstance(connection, ClosedClient) else 0


def _reason(connection: Shown) -> str:
    return connection.reason if isinstance(connection, ClosedClient) else ""


def _uptime(connection: Shown, now: int) -> int:
    return (_stop(connection) or now) - connection.start_ns


_SORTS: dict[str, tuple[Callable[[Shown, int], tuple[str, float]], bool]] = {
    "cid": (lambda c, _: ("", c.cid), False),
    "start": (lambda c, _: ("", c.start_ns), False),
    "subs": (lambda c, _: ("", _subscription_count(c)), True),
    "pending": (lambda c, _: ("", _pending(c)), True),
    "msgs_to": (lambda c, _: ("", c.out_msgs), True),
    "msgs_from": (lambda c, _: ("", c.in_msgs), True),
    "bytes_to": (lambda c, _: ("", c.out_bytes), True),
    "bytes_from": (lambda c, _: ("", c.in_bytes), True),
    "last": (lambda c, _: ("", _last_activity(c)), True),
    "idle": (lambda c, _: ("", _last_activity(c)), False),
    "uptime": (lambda c, now: ("", _uptime(c, now)), False),
    "stop": (lambda c, _: ("", _stop(c)), True),
    "reason": (lambda c, _: (_reason(c), c.cid), False),
    "rtt": (lambda c, _: ("", c.rtt), True),
}
"""Parameter -> (value by the connection and the time in nanoseconds, largest first). Open and closed connections are
sorted together: a value that one kind lacks counts as 0."""
_STATES = {"": "open", "open": "open", "closed": "closed", "all": "all", "any": "all"}


def connz_steps(node: Node, query: Query) -> Steps[Json]:
    """Raises QueryError."""
    sort, state = query.get("sort", "") or "cid", query.get("state", "").lower()
    listed, detailed = subs_detail(query)
    auth = flag(query, "auth")
    offset, limit, cid = number(query, "offset", 0), number(query, "limit", DEFAULT_LIMIT), identifier(query, "cid")
    if state not in _STATES:
        raise QueryError(f"Error decoding state for {query['state']}")
    if sort not in _SORTS:
        raise QueryError(f"invalid sorting option: {sort}")
    state = _STATES[state]
    if sort in ("stop", "reason") and state != "closed":
        raise QueryError(f"sort by {sort} only valid on closed connections")
    account, subject = query.get("acc", ""), query.get("filter_subject", "").encode()
    if subject and not account:
        raise QueryError("filter by subject only valid with account filtering")
    if cid:
        limit = 1
    found = _select(node, state, account)
    total = len(found)  # as nats-server: the filters below shorten the list, not the total
    found = yield from _filter(found, cid, query.get("user", ""), subject, query.get("mqtt_client", ""))
    (value, descending), now = _SORTS[sort], node.clock.time_ns()
    found.sort(key=lambda connection: value(connection, now), reverse=descending)
    page: list[Json] = []
    for connection in found[offset : offset + limit]:
        if isinstance(connection, ClosedClient) or node.server.clients.get(
            connection.cid
        ):  # it may have closed between two steps
            page.append((yield from _connection(node, connection, auth=auth, listed=listed, detailed=detailed)))
            yield
    return {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "num_connections": len(page),
        "total": total,
        "offset": offset,
        "limit": limit,
        "connections": page,
    }


def _select(node: Node, state: str, account: str) -> list[Shown]:
    found: list[Shown] = []
    if state in ("open", "all"):
        found += node.server.clients
    if state in ("closed", "all"):
        found += node.server.clients.closed
    return [connection for connection in found if connection.account == account] if account else found


def _filter(found: list[Shown], cid: int, user: str, subject: bytes, mqtt_client: str) -> Steps[list[Shown]]:
    if mqtt_client:
        return []  # there is no MQTT
    if cid:
        found = [connection for connection in found if connection.cid == cid]
    if user:
        found = [connection for connection in found if connection.user == user]
    if subject:
        takers = set()
        for connection in found:
            if (yield from _listens(connection, subject)):
                takers.add(connection.cid)
        found = [connection for connection in found if connection.cid in takers]
    return found


def _listens(connection: Shown, subject: bytes) -> Steps[bool]:
    """Returns True for an open connection that would receive a message on `subject`."""
    held = connection.subscriptions
    if isinstance(held, int):
        return False
    for some in subsz.portions(list(held.values())):
        if any(subjects.matches(subject, s.subject) for s in some):
            return True
        yield
    return False


def _connection(node: Node, connection: Shown, *, auth: bool, listed: bool, detailed: bool) -> Steps[Json]:
    now = node.clock.time_ns()
    found: Json = {
        "cid": connection.cid,
        "kind": "Client",
        "type": connection.client_type,
        "ip": connection.ip,
        "port": connection.port,
        "start": rfc3339(connection.start_ns),
    }
    if isinstance(connection, ClosedClient):
        end, idle, pending, stalls = connection.stop_ns, (now - connection.stop_ns) / 1e9, 0, 0
        found |= {"last_activity": rfc3339(end), "stop": rfc3339(end), "reason": connection.reason}
    else:
        end, idle = now, node.clock.monotonic() - connection.last_activity
        pending, stalls = connection.pending, connection.stalls
        found["last_activity"] = wall_time(node, connection.last_activity)
    if connection.rtt:
        found["rtt"] = rtt(connection.rtt)
    found |= {
        "uptime": uptime((end - connection.start_ns) / 1e9),
        "idle": uptime(idle),
        "pending_bytes": pending,
        **figures(connection),
    }
    if stalls:
        found["stalls"] = stalls
    found["subscriptions"] = _subscription_count(connection)
    told = {"name": connection.name, "lang": connection.lang, "version": connection.version}
    found |= {name: text for name, text in told.items() if text}
    if not isinstance(connection, ClosedClient):
        found |= _tls(connection.transport, first=connection.tls_first, certificates=auth)
    if auth:
        if connection.user:
            found["authorized_user"] = connection.user
        found |= {"account": connection.account, "name_tag": connection.account, **of_connection(connection)}
    if not isinstance(connection, ClosedClient):
        held = list(connection.subscriptions.values()) if listed else []
        found |= yield from subsz.lists(held, detailed=detailed)
    return found


def _tls(transport: asyncio.Transport | None, *, first: bool, certificates: bool) -> Json:
    """`certificates`: with the chain that the peer has shown."""
    session: ssl.SSLObject | None = transport.get_extra_info("ssl_object") if transport is not None else None
    if transport is None or session is None:
        return {}
    version, cipher = session.version(), session.cipher()
    if version is None or cipher is None:
        return {}
    found: Json = {"tls_version": version.removeprefix("TLSv"), "tls_cipher_suite": go_suite(cipher[0])}
    if certificates and (chain := _chain(transport)):
        found["tls_peer_certs"] = chain
    if first:
        found["tls_first"] = True
    return found


def _chain(transport: asyncio.Transport) -> list[Json]:
    from jetcluster.auth.certificates import CertificateError, chain_of

    try:
        chain = chain_of(transport)
    except CertificateError:
        return []
    return [{"subject": one.full_subject, "spki_sha256": one.key_digest, "cert_sha256": one.digest} for one in chain]
