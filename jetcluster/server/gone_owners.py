"""`GoneOwners`: clients, peers and leaf links that are gone, and are kept out of routes while `removals` takes out what
they had."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.protocol.sublist import Sublist
from jetcluster.server.route import Route
from jetcluster.server.subscription import AnySubscription, ClientSubscription, RemoteInterest

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
