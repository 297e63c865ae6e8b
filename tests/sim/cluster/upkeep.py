"""The judge of what a server keeps beside its messages: timers, holds, queues, caches and counts fit what there is.

A timer that nobody disarmed, a connection that is held and waits for no turn, an answer that a cache keeps although a
subscription came: each is harmless until something else happens, seconds or hours later. So it is looked at itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jetcluster.mesh.link import FULL_LANE_BYTES
from jetcluster.protocol.connection_states import BEING_CHECKED
from jetcluster.protocol.sublist import ACK_TOKENS
from jetcluster.server.accounts.route import Route
from jetcluster.server.accounts.shared_routes import SharedRoute
from jetcluster.server.accounts.subscription import (
    InternalSubscription,
    LeafInterest,
    RemoteInterest,
)

if TYPE_CHECKING:
    from jetcluster.node.node import Node

ROUTES = 24
"""Cached routes of an account at each look."""
NOBODY = b"\x01nobody"
"""A token that nobody subscribes to."""
Tokens = list[bytes]


# ---- clients


def clients(node: Node) -> Iterator[str]:
    """Compares timers and holds of each client with what it is doing."""
    server = node.server
    present: dict[int, Any] = attrgetter("_present")(server.clients)
    queued = 0
    for cid, client in present.items():
        queued += attrgetter("commands._queued")(client)
        if not client.is_lost and not client.close_reason:
            yield from (f"connection {cid}: {text}" for text in _client(client))
    if node.leafnodes is not None:
        queued += sum(attrgetter("reader._queued")(link) for link in node.leafnodes.links)
    governor = server.parts.governor
    if governor.waiting != queued:
        yield f"{queued} connections wait for a turn, and {governor.waiting} are counted"
    for cid in server.crowd.strangers:
        if cid not in present or cid in server.clients.departed:
            yield f"connection {cid} counts as a stranger, and has gone"
    if server.ws_port is not None:
        for one in attrgetter("_handshaking")(server.ws_port):
            if attrgetter("_timer")(one) is None:
                yield "a connection counts as in its handshake of WebSocket, and is not"


def _client(client: Any) -> Iterator[str]:
    timers: dict[str, object] = attrgetter("_timers")(client)
    held: int = attrgetter("_held")(client)
    session, queued = client.session, attrgetter("commands._queued")(client)
    for what, found, wanted in (
        ("its write has a deadline", "write" in timers, client.blocked),
        ("it is to be pinged", "ping" in timers, True),
        ("it is stalled, with an end to that", "stall" in client.holds, "stall" in timers),
        ("it is held until its turn", "portion" in client.holds, queued),
        ("it is held while it is checked", "login" in client.holds, client.state in BEING_CHECKED),
    ):
        if found != wanted:
            yield f"{what}: {found}, and it is to be {wanted}"
    if session.router is None:
        return
    if "auth" in timers:
        yield "it has logged in, and is to be closed as if not"
    if not client.out and client.pending != held:
        yield f"nothing is to be written, and {client.pending} bytes count as that, of which {held} are written"
    if attrgetter("commands._parser.max_payload")(client) != client.max_payload:
        yield "the largest message that is read is not the one that it may send"
    permissions = session.permissions
    watches = permissions is not None and permissions.watches_deliveries
    if permissions is not None:
        open_bytes, replies = attrgetter("_replies_bytes", "_replies")(permissions)
        if open_bytes != sum(map(len, replies)):
            yield f"{len(replies)} replies are open, and {open_bytes} bytes of them are counted"
        if any(left == 0 for left, _ in replies.values()):
            yield "a reply counts as open to which nothing more may be sent"
    for sid, one in client.subscriptions.items():
        if one.sid != sid or one.owner is not client or one.closed:
            yield f"its subscription {sid!r} is another one's, or closed"
        if one.special != (bool(one.max) or watches):
            yield f"its subscription {sid!r} is {'' if one.special else 'not '}watched"
        if one.max and one.delivered >= one.max:
            yield f"its subscription {sid!r} has got {one.delivered} of {one.max}, and is there"


# ---- links


def links(node: Node) -> Iterator[str]:
    """Compares what a link keeps with what it is to send, and the mesh's tables with each other."""
    mesh = None if node.jetstream is None else node.jetstream.mesh
    if mesh is None or not hasattr(mesh, "dialer"):
        return
    chosen = attrgetter("_chosen")(mesh)
    for peer, link in mesh.links.items():
        name = link.server_name
        ordered, later, gathered, size = attrgetter("_ordered", "_later", "_gathered", "_ordered_bytes")(link)
        if not link.up or link.peer_id != peer or chosen.get(peer) is not link:
            yield f"the link to {name} is not the one that was chosen, or down"
        if link.silent and link.valve.closed:
            yield f"{name} is silent, and publishers wait for it"
        if link.valve.closed and size * 4 < FULL_LANE_BYTES:
            yield f"hardly anything waits for {name}, and publishers do"
        if not gathered and size != sum(map(len, (*ordered, *later))):
            yield f"{sum(map(len, (*ordered, *later)))} bytes wait for {name}, and {size} are counted"
    for target in mesh.dialer.targets.values():
        if target.configured and not target.is_self and target.task is not None and target.task.done():
            yield f"nobody dials {target} any more"


# ---- subscriptions and cached routes


def _matches(subject: Tokens, pattern: Tokens) -> bool:
    for at, token in enumerate(pattern):
        if token == b">":
            return len(subject) > at
        if at >= len(subject) or (token not in (b"*", subject[at])):
            return False
    return len(subject) == len(pattern)


def indexes(node: Node) -> Iterator[str]:
    """Looks at each account's tree of subscriptions, whatever is cached."""
    for router in node.server.accounts:
        index, held = router.index, len(list(router.index))
        if index.count != held:
            yield f"account {router.account} has {held} subscriptions, and counts {index.count}"
        stack = [(attrgetter("_root")(index), True)]
        while stack:
            place, is_root = stack.pop()
            if place.is_empty() and not is_root:
                yield f"account {router.account} keeps a place without subscriptions"
            leaves = sum(child.has_subscriptions() for child in place.children.values())
            if place.leaves != leaves:
                yield f"account {router.account} counts {place.leaves} subscriptions at a place, of {leaves}"
            below = (*place.children.values(), place.star, place.full)
            stack += [(child, False) for child in below if child is not None]


def routes(look: int) -> Callable[[Node], Iterator[str]]:
    """Some of the cached routes, others at each look, against all subscriptions."""

    def wrong(node: Node) -> Iterator[str]:
        for router in node.server.accounts:
            if attrgetter("_owners")(router.gone):
                continue  # what is left of them is on its way out
            index = router.index
            takers = [(one.subject.split(b"."), one) for one in index]
            kept = [(subject, subject.split(b"."), route) for subject, route in index.literals.items()]
            kept += [(head, [*head.split(b"."), NOBODY], route) for head, route in index.prefixes.items()]
            kept += [(head, [*head.split(b"."), *[NOBODY] * ACK_TOKENS], route) for head, route in index.deep.items()]
            start = look * ROUTES % max(len(kept), 1)
            for name, tokens, route in islice(kept, start, start + ROUTES):
                wanted = [one for subject, one in takers if _matches(tokens, subject)]
                for text in _route(route, wanted):
                    yield f"account {router.account}, {name!r}: {text}"
                for place in (at for at, token in enumerate(tokens) if token == NOBODY):
                    if one := _picky(takers, tokens, place):
                        yield f"account {router.account}: all of {name!r} go one way, and {one!r} is subscribed to"
        return

    return wrong


def _picky(takers: list[tuple[Tokens, Any]], tokens: Tokens, place: int) -> bytes:
    """A subscription that tells apart what a shared route does not; b"" for none."""
    for subject, one in takers:
        if place < len(subject) and subject[place] not in (b"*", b">") and b">" not in subject[:place]:
            literal = [subject[at] if at < len(subject) and token == NOBODY else token
                       for at, token in enumerate(tokens)]  # fmt: skip
            if _matches([NOBODY if token in (b"*", b">") else token for token in literal], subject):
                return bytes(one.subject)
    return b""


def _route(route: Route, wanted: list[Any]) -> Iterator[str]:
    """Compares who gets a message with who is to get it."""
    if isinstance(route, SharedRoute):
        if route.mapping is not None:
            return  # what it maps to has a route of its own
        route = route.unmapped
    plain = [one for one in wanted if one.queue is None]
    if exclusive := [one for one in plain if isinstance(one, InternalSubscription) and one.exclusive]:
        if route.open is None:
            yield "it has takers that take all, and goes to others"
            return
        if set(route.callbacks) != {one.callback for one in exclusive}:
            yield "it does not go to who takes all"
        plain, route = [one for one in plain if one not in exclusive], route.open
    own = [one for one in plain if not isinstance(one, InternalSubscription | RemoteInterest)]
    for what, found, those in (
        ("clients", Counter(map(id, route.clients)), Counter(map(id, own))),
        ("callbacks", len(route.callbacks), sum(isinstance(one, InternalSubscription) for one in plain)),
        ("servers", _ids(route.nodes), _ids(one.peer for one in plain if _is_node(one))),
        ("leaves", _ids(route.leaves), _ids(one.peer for one in plain if isinstance(one, LeafInterest))),
    ):
        if found != those:
            yield f"it goes to other {what} than have subscribed"
    if route.client is not None and route.client.special:
        yield "it goes to one who is to be watched, as if not"
    groups: dict[bytes, list[Any]] = {}
    for one in wanted:
        if one.queue is not None:
            groups.setdefault(one.queue, []).append(one)
    if {group.name for group in route.queues} != set(groups):
        yield f"it goes to the groups {[group.name for group in route.queues]}, and {sorted(groups)} have subscribed"
        return
    for group in route.queues:
        members = groups[group.name]
        elsewhere = {id(one.peer): one.count for one in members if _is_node(one)}
        here = _ids(one for one in members if not isinstance(one, RemoteInterest))
        if _ids(group.local) != here or {id(peer): count for peer, count in group.remote} != elsewhere:
            yield f"it goes to other members of {group.name!r} than there are"


def _is_node(one: Any) -> bool:
    return isinstance(one, RemoteInterest) and not isinstance(one, LeafInterest)


def _ids(of: Any) -> set[int]:
    return set(map(id, of))


# ---- requests of the system account


def requests(node: Node) -> Iterator[str]:
    """Compares counts of requests with what waits, and tables with what is under way."""
    monitoring: Any = node.monitoring
    others, queues = attrgetter("_of_others", "_queues")(monitoring.services)
    system = node.options.system_account_name
    wanted = Counter(asker for queue in queues for _, _, asker, _ in queue if asker != system)
    if +others != wanted:
        yield f"requests of {dict(wanted)} wait, and {dict(+others)} are counted"
    for one in attrgetter("_open")(monitoring.counts):
        if attrgetter("_timer")(one).cancelled():
            yield "a question for subscribers is over, and counts as open"
