"""The removal of routes from a router's index when a client, a peer or a leaf link is gone, without keeping the loop.

There may be a million subscriptions. Few are taken out at once, many in steps, in turns with all else that asks the
loop for time. They take nothing from the moment at which their owner is gone: no route has them any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

from jetcluster.budget import BusyError, LoopBudget, Steps
from jetcluster.clock import Timers
from jetcluster.protocol.interest import RemotePeer
from jetcluster.protocol.sublist import Sublist
from jetcluster.server.route import Route
from jetcluster.server.subscription import AnySubscription, ClientSubscription, RemoteInterest

if TYPE_CHECKING:
    from jetcluster.server.leaf_peer import LeafPeer
    from jetcluster.server.router import Router

log = logging.getLogger("jetcluster.server")

FEW: Final = 256
"""So many are taken out at once."""
MARKED: Final = 16_384
"""So many subscriptions are told at once that they are closed, which takes 1 ms; of more, their owner is remembered."""
PER_STEP: Final = 32
RETRY: Final = 0.01
"""Seconds after which the loop is asked again for time when too much waits for it."""

Compile = Callable[[bytes, list[AnySubscription], dict[bytes, list[AnySubscription]]], Route]


class GoneOwners:
    """Clients, peers and leaf links of one router that are gone while some of their takers are still in its index."""

    def __init__(self, index: Sublist[AnySubscription, Route], compile: Compile) -> None:
        self._index = index
        self._compile = compile
        self._owners: set[object] = set()

    def use(self, compile: Compile) -> None:
        """From now on routes are made by `compile`."""
        self._compile = compile
        self._index.compile_with(self._without_them if self._owners else compile)

    def add(self, owner: object) -> None:
        self._owners.add(owner)
        self.use(self._compile)

    def discard(self, owner: object) -> None:
        self._owners.discard(owner)
        self.use(self._compile)

    def _without_them(
        self, subject: bytes, plain: list[AnySubscription], queues: dict[bytes, list[AnySubscription]]
    ) -> Route:
        left = {name: [taker for taker in members if self._is_here(taker)] for name, members in queues.items()}
        groups = {name: members for name, members in left.items() if members}
        return self._compile(subject, [taker for taker in plain if self._is_here(taker)], groups)

    def _is_here(self, taker: AnySubscription) -> bool:
        if isinstance(taker, ClientSubscription):
            return taker.owner not in self._owners
        return not isinstance(taker, RemoteInterest) or taker.peer not in self._owners


class Removals:
    """All removals of a server that are under way, in turns; one job of the loop's budget."""

    def __init__(self, budget: LoopBudget, timers: Timers) -> None:
        self._budget = budget
        self._timers = timers
        self._waiting: deque[Iterator[None]] = deque()
        self._at_work = False

    def of_client(self, router: Router, client: object, subscriptions: dict[bytes, ClientSubscription]) -> None:
        """All of `subscriptions`, which is this object's from now on."""
        marked = len(subscriptions) <= MARKED or router.shadows is not None  # these are asked by other accounts' routes
        if marked:
            for subscription in subscriptions.values():
                subscription.closed = True
        self._begin(router, None if marked else client, len(subscriptions), _taken_out(router, subscriptions))

    def of_peer(self, router: Router, peer: RemotePeer) -> None:
        self._begin(router, peer, router.wanted_by(peer), router.dropping_peer(peer))

    def of_leaf(self, router: Router, link: LeafPeer) -> None:
        self._begin(router, link, router.wanted_by(link), router.dropping_leaf(link))

    def _begin(self, router: Router, owner: object | None, count: int, steps: Iterator[None]) -> None:
        if count <= FEW:
            exhaust(steps)
            return
        if owner is not None:
            router.gone.add(owner)
            steps = _then(steps, lambda: router.gone.discard(owner))
        next(steps, None)  # what comes before the first one happens now
        self._waiting.append(steps)
        self._go_on()

    def _go_on(self) -> None:
        if self._at_work or not self._waiting:
            return
        self._at_work = True
        try:
            self._budget.start(self, self._steps(), self._rest, self._failed)
        except BusyError:
            self._timers.call_later(RETRY, self._rest, None)

    def _steps(self) -> Steps[None]:
        while self._waiting:
            steps = self._waiting.popleft()
            for _ in range(PER_STEP):
                try:
                    next(steps)
                except StopIteration:
                    break
            else:
                self._waiting.append(steps)
            yield

    def _rest(self, _: None) -> None:
        self._at_work = False
        self._go_on()

    def _failed(self, error: Exception) -> None:
        log.error("subscriptions of a connection could not be removed", exc_info=error)
        self._rest(None)


def exhaust(steps: Iterator[None]) -> None:
    """All of them at once."""
    for _ in steps:
        pass


def _taken_out(router: Router, subscriptions: dict[bytes, ClientSubscription]) -> Generator[None, None, None]:
    while subscriptions:
        _, subscription = subscriptions.popitem()
        subscription.closed = True
        router.take_out(subscription)
        yield


def _then(steps: Iterator[None], last: Callable[[], None]) -> Generator[None, None, None]:
    try:
        yield from steps
    finally:
        last()
