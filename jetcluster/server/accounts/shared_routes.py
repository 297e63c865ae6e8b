"""Stream imports and subject mappings: what is published in one account appears in another for those who subscribe
there, or in the same one under another subject.

A subscription of the importing account that touches an import has a shadow in the exporting account: interest
there, told to other nodes like any other, whose messages go to the subscription under the local subject (precedent:
addShadowSubscriptions in nats-server's client.go). No shadow has a shadow of its own: an imported stream is not
exported again.

The routes of such accounts are `SharedRoute`s: the same cached answer, with what the plain one lacks. An account
without mappings and whose streams nobody imports has plain `Route`s and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, cast

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
"""Subjects that are remembered per import or mapping."""
LONGEST_CACHED = 512
"""Bytes of a subject and what it becomes: longer ones are made each time."""

_OWN = (b"$JS.", b"$SYS.", b"_R_.")
"""Subjects of the server's own callbacks that no other account reaches by a stream import."""
Deliver = Callable[[Route, bytes, bytes, bytes, bytes, Origin], int]
"""(route, subject, reply, headers, payload, origin) -> how many took it."""


class Names:
    """Local subjects of an import by remote ones."""

    __slots__ = ("_cached", "imported")

    def __init__(self, imported: StreamImport) -> None:
        self.imported = imported
        self._cached: dict[bytes, bytes] = {}

    def local(self, subject: bytes) -> bytes:
        """TOO_LONG for one that nobody may get. A subject that the import does not take stays as it is: what a consumer
        delivers shows the stream's own."""
        imported = self.imported
        if imported.same:
            return subject
        if imported.transform is None:
            return imported.local if subject == imported.remote else subject
        found = self._cached.get(subject)
        if found is None:
            found = imported.transform.match(subject) or subject
            if len(subject) + len(found) > LONGEST_CACHED:
                return found
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[subject] = found
        return found


class Shadow(Passage):
    """A subscription of the importing account, as the exporting account has it."""

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
    """The same of what the other end of a leaf link wants."""

    __slots__ = ("account",)

    def __init__(self, subject: bytes, target: LeafInterest, names: Names, account: str) -> None:
        super().__init__(subject, target, names)
        self.account = account
        """The importing one, which the link belongs to."""

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
    """A function that puts a passage into an account, or takes it out."""

    def __call__(self, passage: Passage, *, told: bool) -> None:
        """`told`: other nodes hear of the change, so that they send (or stop sending) what `passage` takes."""
        ...


class Exporter(NamedTuple):
    """Functions that put a shadow into the account that exports a stream, and that take it out again."""

    add: PassageChange
    remove: PassageChange


class _Import:
    """One stream import with the account that it is of."""

    __slots__ = ("_back", "_same", "exporter", "local", "names", "remote")

    def __init__(self, imported: StreamImport, exporter: Exporter) -> None:
        self.names = Names(imported)
        self.exporter = exporter
        self.local = imported.local
        self.remote = imported.remote
        self._same = imported.same
        self._back: SubjectTransform | None = imported.back()

    def remote_of(self, subject: bytes) -> bytes | None:
        """The subject that a subscription to `subject` wants of the exporting account; None for none."""
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
    """A subscription's tokens made as narrow as the import's; whether they fit is for the caller to see."""
    tokens = [
        local[at] if token == b"*" and at < len(local) and local[at] != b">" else token
        for at, token in enumerate(wanted)
    ]
    if tokens[-1] == b">" and len(local) >= len(tokens):
        tokens[-1:] = local[len(tokens) - 1 :]
    return b".".join(tokens)


class Shadows:
    """All shadows of one importing account's subscriptions."""

    def __init__(
        self, account: str, subscriptions: Iterable[AnySubscription], imports: Sequence[tuple[StreamImport, Exporter]]
    ) -> None:
        """`subscriptions` of `account` that there are already."""
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
            exporter.add(shadow, told=not _is_of_spoke(subscription))

    def _shadow(self, remote: bytes, subscription: AnySubscription, names: Names) -> Shadow:
        if isinstance(subscription, LeafInterest):
            return LeafShadow(remote, subscription, names, self._account)
        return Shadow(remote, subscription, names)

    def remove(self, subscription: AnySubscription) -> None:
        for exporter, shadow in self._of.pop(subscription, ()):
            exporter.remove(shadow, told=not _is_of_spoke(subscription))

    def clear(self) -> None:
        for subscription in list(self._of):
            self.remove(subscription)


def _may_cast(subscription: AnySubscription) -> bool:
    if isinstance(subscription, InternalSubscription):
        return not subscription.local_only and not subscription.subject.startswith(_OWN)
    return isinstance(subscription, ClientSubscription | LeafInterest)


def _is_of_spoke(subscription: AnySubscription) -> bool:
    """True for a link whose other end is a hub: each node has its own, so other nodes need not know."""
    return isinstance(subscription, LeafInterest) and subscription.peer.spoke


class SharedRoute(Route):
    """A route with a mapping, which alone clients' messages meet; `open`, as for `exclusive` takers, is for the
    server itself and for peers: what they send has been mapped where it came in."""

    __slots__ = ("bare", "mapping", "unmapped")

    def __init__(
        self, subject: bytes, plain: list[AnySubscription], queues: dict[bytes, list[AnySubscription]]
    ) -> None:
        mapping = min((s for s in plain if isinstance(s, MappedSubject)), key=_order, default=None)
        rest = [s for s in plain if not isinstance(s, MappedSubject)]
        super().__init__(subject, rest if mapping is None else [mapping], queues if mapping is None else {})
        self.mapping = mapping
        self.unmapped: Route = self if mapping is None else Route(subject, rest, queues)
        """As if there were no mapping."""
        if mapping is not None:
            self.open = self.unmapped.open or self.unmapped
        shadows = any(isinstance(s, Shadow) for members in (rest, *queues.values()) for s in members)
        self.bare: Route = self.unmapped
        """`unmapped` for what came by a service import: it is not exported again as a stream."""
        if shadows:
            groups = {name: _without_shadows(members) for name, members in queues.items()}
            self.bare = Route(subject, _without_shadows(rest), {name: some for name, some in groups.items() if some})


class MappedSubject(Passage):
    """A subject mapping of an account, in its index; the first one that takes a subject counts."""

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
        """`route_of` a subject of the account; `deliver` takes on what has its new subject."""
        super().__init__(mapping.source)
        self.order = order
        self.last = b""
        """Where the last message went, b"" if it was lost: a requester whom nobody answers is told that subject."""
        self._rng = rng
        self._route_of = route_of
        self._deliver = deliver
        self._ways = mapping.of(cluster)
        only, weight = self._ways[0]
        self._only = only if len(self._ways) == 1 and weight == 100 and not only.random else None
        self._cached: dict[bytes, bytes | None] = {}

    def destination(self, subject: bytes) -> bytes | None:
        """Where a message goes; None when its share of the weights is lost."""
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
        cached = self._cached
        if subject not in cached:
            found = _sendable(self._only.match(subject))
            if len(subject) + len(found or b"") > LONGEST_CACHED:
                return found
            if len(cached) >= MAX_CACHED:
                cached.clear()
            cached[subject] = found
        return cached[subject]

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        return self.pass_on(subject, reply, headers, payload, origin, bare=False) > 0

    def pass_on(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin, *, bare: bool
    ) -> int:
        """`bare`: see `SharedRoute.bare`. Returns how many took it."""
        target = self.destination(subject)
        self.last = target or b""
        if target is None:
            return 0
        route = self._route_of(target)
        if isinstance(route, SharedRoute):
            route = route.bare if bare else route.unmapped
        if not bare and not origin.may_publish_mapped(target):
            return 1  # it has been told
        if route.reserved:
            return 0
        return self._deliver(route, target, reply, headers, payload, origin)

    def take_many(self, messages: list[Outgoing], origin: Origin, target: bytes) -> int:  # type: ignore[override]
        raise AssertionError("the server's own messages are not mapped")


def _sendable(target: bytes | None) -> bytes | None:
    """The subject to deliver to; None for one that has become too long, whose message is dropped."""
    return None if target is TOO_LONG else target


def _order(mapping: MappedSubject) -> int:
    return mapping.order


def _without_shadows(subscriptions: list[AnySubscription]) -> list[AnySubscription]:
    return [s for s in subscriptions if not isinstance(s, Shadow)]
