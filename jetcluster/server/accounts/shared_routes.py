"""Stream imports and subject mappings: messages of one account reach subscriptions in another, or in the same one under
another subject.

A subscription of the importing account that overlaps an import has a shadow in the exporting account. The shadow is
interest there, announced to other nodes as usual; its messages go to the subscription under the local subject
(precedent: addShadowSubscriptions in nats-server's client.go). A shadow has no shadow: imports are not exported again.

Accounts with mappings, or whose streams are imported, have `SharedRoute`s; others have plain `Route`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from jetcluster.clock import Rng
from jetcluster.config.import_rules import StreamImport, SubjectMapping
from jetcluster.model.transforms import TOO_LONG, SubjectTransform
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.server.accounts.route import Route
from jetcluster.server.accounts.subscription import (
    AnySubscription,
    ClientSubscription,
    InternalSubscription,
    LeafInterest,
    LeafPeer,
    Passage,
)
from jetcluster.server.permissions import of_another_account

MAX_CACHED = 4096
"""Subjects cached per import or mapping."""
LONGEST_CACHED = 512
"""Bytes of a subject and its mapped one up to which they are cached."""

_Mapped = TypeVar("_Mapped", bytes, bytes | None)
_OWN = (b"$JS.", b"$SYS.", b"_R_.")
"""Prefixes of the server's own callbacks that get no messages by stream imports."""
Deliver = Callable[[Route, bytes, bytes, bytes, bytes, Origin], int]
"""(route, subject, reply, headers, payload, origin) -> number of takers."""


def cache(cached: dict[bytes, _Mapped], subject: bytes, mapped: _Mapped) -> None:
    """Caches a mapped subject, unless the two are long; a full cache is emptied."""
    if len(subject) + len(mapped or b"") <= LONGEST_CACHED:
        if len(cached) >= MAX_CACHED:
            cached.clear()
        cached[subject] = mapped


class Names:
    """The local subjects of a stream import, by remote ones."""

    __slots__ = ("_cached", "imported")

    def __init__(self, imported: StreamImport) -> None:
        self.imported = imported
        self._cached: dict[bytes, bytes] = {}

    def local(self, subject: bytes) -> bytes:
        """Returns the local subject, or TOO_LONG if it may not be delivered. A subject outside of the import stays as
        it is: a consumer's deliveries show the stream's subjects."""
        imported = self.imported
        if imported.same:
            return subject
        if imported.transform is None:
            return imported.local if subject == imported.remote else subject
        found = self._cached.get(subject)
        if found is None:
            found = imported.transform.match(subject) or subject
            cache(self._cached, subject, found)
        return found


class Shadow(Passage):
    """A subscription of the importing account as a taker in the exporting account."""

    __slots__ = ("names", "target")

    def __init__(self, subject: bytes, target: AnySubscription, names: Names) -> None:
        super().__init__(subject, target.queue)
        self.target = target
        self.names = names

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        target = cast(ClientSubscription | InternalSubscription, self.target)
        if headers and isinstance(target, InternalSubscription):
            headers = of_another_account(headers)
        local = self.names.local(subject)
        return local is not TOO_LONG and target.take(local, reply, headers, payload, origin)

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes) -> int:
        local = self.names.local(target)
        if local is TOO_LONG:
            return 0
        moved = [(local if s == target else s, r, h, p) for s, r, h, p in messages]
        if isinstance(self.target, ClientSubscription):
            return self.target.take_many(moved, origin)
        taken = False
        for subject, reply, headers, payload in moved:
            taken = self.take(subject, reply, headers, payload, origin)
        return taken

    @property
    def backlog(self) -> int:
        return cast(ClientSubscription | InternalSubscription, self.target).backlog


class LeafShadow(Shadow):
    """The shadow of a leaf link's interest."""

    __slots__ = ("account",)

    def __init__(self, subject: bytes, target: LeafInterest, names: Names, account: str) -> None:
        super().__init__(subject, target, names)
        self.account = account
        """The importing account, which is the link's."""

    @property
    def link(self) -> LeafPeer:
        return cast(LeafInterest, self.target).peer

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        link = self.link
        local = self.names.local(subject)
        if origin is link or local is TOO_LONG or not link.joined:
            return False
        queues = [] if self.queue is None else [self.queue]
        link.send_msg(self.account, local, reply, queues, headers, payload)
        return True

    @property
    def backlog(self) -> int:
        return self.link.pending


class PassageChange(Protocol):
    """A function that adds a passage to an account, or removes it."""

    def __call__(self, passage: Passage, *, announced: bool) -> None:
        """Changes the account; `announced`: announces it to other nodes, which start or stop to send messages."""


class Exporter(NamedTuple):
    """Functions that add a shadow to the account that exports a stream, and remove it."""

    add: PassageChange
    remove: PassageChange


class _Import:
    """One stream import with its exporting account."""

    __slots__ = ("_back", "_same", "exporter", "local", "names", "remote")

    def __init__(self, imported: StreamImport, exporter: Exporter) -> None:
        self.names = Names(imported)
        self.exporter = exporter
        self.local = imported.local
        self.remote = imported.remote
        self._same = imported.same
        self._back: SubjectTransform | None = imported.back()

    def remote_of(self, subject: bytes) -> bytes | None:
        """Returns the subject of the shadow of a subscription to `subject`; None if they do not overlap."""
        local = self.local
        if subject == local:
            return self.remote
        if subjects.is_subset(subject, local):
            return self._narrow(subject)
        if subjects.is_literal(subject):
            return None
        if subjects.is_subset(local, subject):
            return self.remote
        both = _overlap(subject.split(b"."), local.split(b"."))
        return self._narrow(both) if subjects.is_subset(both, local) else None

    def _narrow(self, local: bytes) -> bytes | None:
        if self._same:
            return local
        if self._back is None:
            return self.remote
        remote = self._back.match(local)
        return None if remote is TOO_LONG else remote


def _overlap(wanted: list[bytes], local: list[bytes]) -> bytes:
    """Narrows a subscription's tokens to the import's; the caller checks that the result is within the import."""
    tokens = [
        local[at] if token == b"*" and at < len(local) and local[at] != b">" else token
        for at, token in enumerate(wanted)
    ]
    if tokens[-1] == b">" and len(local) >= len(tokens):
        tokens[-1:] = local[len(tokens) - 1 :]
    return b".".join(tokens)


class Shadows:
    """The shadows of one importing account's subscriptions."""

    def __init__(
        self, account: str, subscriptions: Iterable[AnySubscription], imports: Sequence[tuple[StreamImport, Exporter]]
    ) -> None:
        """`subscriptions`: the existing ones of `account`, which get their shadows at once."""
        self._account = account
        self._imports = [_Import(imported, exporter) for imported, exporter in imports]
        self._of: dict[AnySubscription, list[tuple[Exporter, Shadow]]] = {}
        for subscription in list(subscriptions):
            self.add(subscription)

    def add(self, subscription: AnySubscription) -> None:
        if not _may_cast(subscription):
            return
        found: list[tuple[Exporter, Shadow]] = []
        for imported in self._imports:
            remote = imported.remote_of(subscription.subject)
            if remote is not None:
                found.append((imported.exporter, self._shadow(remote, subscription, imported.names)))
        if found:
            self._of[subscription] = found
        for exporter, shadow in found:
            exporter.add(shadow, announced=not _is_of_spoke(subscription))

    def _shadow(self, remote: bytes, subscription: AnySubscription, names: Names) -> Shadow:
        if isinstance(subscription, LeafInterest):
            return LeafShadow(remote, subscription, names, self._account)
        return Shadow(remote, subscription, names)

    def remove(self, subscription: AnySubscription) -> None:
        for exporter, shadow in self._of.pop(subscription, ()):
            exporter.remove(shadow, announced=not _is_of_spoke(subscription))

    def clear(self) -> None:
        for subscription in list(self._of):
            self.remove(subscription)


def _may_cast(subscription: AnySubscription) -> bool:
    if isinstance(subscription, InternalSubscription):
        return not subscription.local_only and not subscription.subject.startswith(_OWN)
    return isinstance(subscription, ClientSubscription | LeafInterest)


def _is_of_spoke(subscription: AnySubscription) -> bool:
    """Returns True for a hub's interest on a leaf link: each node has its own link, so others need not know it."""
    return isinstance(subscription, LeafInterest) and subscription.peer.spoke


class SharedRoute(Route):
    """A route that may have a mapping, then the only taker of clients' messages. Messages of the server itself, and of
    peers, which have mapped them already, take `open`, as with `exclusive` takers."""

    __slots__ = ("bare", "mapping", "unmapped")

    def __init__(
        self, subject: bytes, plain: list[AnySubscription], queues: dict[bytes, list[AnySubscription]]
    ) -> None:
        mapping = min((s for s in plain if isinstance(s, MappedSubject)), key=_order, default=None)
        rest = [s for s in plain if not isinstance(s, MappedSubject)]
        super().__init__(subject, rest if mapping is None else [mapping], queues if mapping is None else {})
        self.mapping = mapping
        self.unmapped: Route = self if mapping is None else Route(subject, rest, queues)
        """The route without the mapping."""
        if mapping is not None:
            self.open = self.unmapped.open or self.unmapped
        shadows = any(isinstance(s, Shadow) for members in (rest, *queues.values()) for s in members)
        self.bare: Route = self.unmapped
        """`unmapped` without shadows, for messages of service imports, which are not exported again as a stream."""
        if shadows:
            groups = {name: _without_shadows(members) for name, members in queues.items()}
            self.bare = Route(subject, _without_shadows(rest), {name: some for name, some in groups.items() if some})


class MappedSubject(Passage):
    """A subject mapping in its account's index; the first one in `order` that matches a subject applies."""

    __slots__ = ("_cached", "_deliver", "_only", "_rng", "_route_of", "_ways", "last", "order")

    def __init__(
        self,
        mapping: SubjectMapping,
        cluster: str,
        order: int,
        rng: Rng,
        route_of: Callable[[bytes], Route],
        deliver: Deliver,
    ) -> None:
        """`route_of` returns the route of a subject; `deliver` delivers a message under its new subject."""
        super().__init__(mapping.source)
        self.order = order
        self.last = b""
        """The last message's new subject, b"" if it was dropped: shown to a requester without responders."""
        self._rng = rng
        self._route_of = route_of
        self._deliver = deliver
        self._ways = mapping.of(cluster)
        only, weight = self._ways[0]
        self._only = only if len(self._ways) == 1 and weight == 100 and not only.random else None
        self._cached: dict[bytes, bytes | None] = {}

    def destination(self, subject: bytes) -> bytes | None:
        """Returns a message's new subject; None if it is dropped, as when the weights add up to less than 100."""
        if self._only is not None:
            return self._remembered(subject)
        rng = self._rng
        number = int(rng.random() * 100)
        for transform, reached in self._ways:
            if number < reached:
                return _sendable(transform.match(subject, rng.randrange(2**31) if transform.random else 0))
        return None

    def _remembered(self, subject: bytes) -> bytes | None:
        assert self._only is not None
        if subject in self._cached:
            return self._cached[subject]
        found = _sendable(self._only.match(subject))
        cache(self._cached, subject, found)
        return found

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        return self.pass_on(subject, reply, headers, payload, origin, bare=False) > 0

    def pass_on(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin, *, bare: bool
    ) -> int:
        """Delivers a message under its new subject; returns the number of takers. `bare`: see `SharedRoute.bare`."""
        target = self.destination(subject)
        self.last = target or b""
        if target is None:
            return 0
        route = self._route_of(target)
        if isinstance(route, SharedRoute):
            route = route.bare if bare else route.unmapped
        if not bare and not origin.may_publish_mapped(target):
            return 1  # the client has got an -ERR
        if route.reserved:
            return 0
        return self._deliver(route, target, reply, headers, payload, origin)

    def take_many(self, messages: list[Outgoing], origin: Origin, target: bytes) -> int:  # type: ignore[override]
        raise AssertionError("the server's own messages are not mapped")


def _sendable(target: bytes | None) -> bytes | None:
    """Returns None for TOO_LONG, whose message is dropped, else `target`."""
    return None if target is TOO_LONG else target


def _order(mapping: MappedSubject) -> int:
    return mapping.order


def _without_shadows(subscriptions: list[AnySubscription]) -> list[AnySubscription]:
    return [s for s in subscriptions if not isinstance(s, Shadow)]
