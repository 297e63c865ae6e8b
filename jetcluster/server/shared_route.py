"""Routes of an account that maps subjects or shares streams: the same cached answer, with what the plain one lacks.

An account without mappings and whose streams nobody imports has plain `Route`s and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Rng
from jetcluster.config.import_rules import SubjectMapping
from jetcluster.model.transforms import TOO_LONG
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.server.route import Route
from jetcluster.server.stream_imports import Shadow
from jetcluster.server.subscription import AnySubscription, Passage

MAX_CACHED = 4096
"""Mapped subjects that are remembered per mapping."""
LONGEST_CACHED = 512
"""Bytes of a subject and what it becomes: longer ones are made each time."""

Deliver = Callable[[Route, bytes, bytes, bytes, bytes, Origin], int]
"""(route, subject, reply, headers, payload, origin) -> how many took it."""


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
