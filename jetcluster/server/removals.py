"""The removal of routes from a router's index when a client, a peer or a leaf link is gone, without keeping the loop.

There may be a million subscriptions. Few are taken out at once, many in steps, in turns with all else that asks the
loop for time. They take nothing from the moment at which their owner is gone: no route has them any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final

from jetcluster.budget import BusyError, LoopBudget, Steps, exhaust
from jetcluster.clock import Timers
from jetcluster.protocol.interest import RemotePeer
from jetcluster.server.leaf_peer import LeafPeer
from jetcluster.server.router import Router
from jetcluster.server.subscription import ClientSubscription

log = logging.getLogger("jetcluster.server")

FEW: Final = 256
"""So many are taken out at once."""
MARKED: Final = 16_384
"""So many subscriptions are told at once that they are closed, which takes 1 ms; of more, their owner is remembered."""
PER_STEP: Final = 32
RETRY: Final = 0.01
"""Seconds after which the loop is asked again for time when too much waits for it."""


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
        self._begin(router, peer, router.peers.wanted_by(peer), router.peers.dropping_peer(peer))

    def of_leaf(self, router: Router, link: LeafPeer) -> None:
        self._begin(router, link, router.peers.wanted_by(link), router.peers.dropping_leaf(link))

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
