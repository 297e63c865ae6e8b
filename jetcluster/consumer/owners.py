"""The assignment of consumers to replicas: the stream's leader decides it, and the log applies it (CONSUMER_OWNER).

A new consumer goes to the voter that owns the fewest, a push consumer to the node of its client; a consumer whose owner
is gone moves at once. No consumer moves back by itself when a node returns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from jetcluster.clock import Clock
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.stream.log.commands import CONSUMER_OWNER, HEAD

LEAVING_SECONDS = 10.0
"""Seconds for which a node's wish to own nothing counts; the node repeats it."""
MAX_MOVES = 4096
"""Moves per command; the rest follow in the next one."""

Move = tuple[int, int, str]
"""(consumer id, its epoch before the move, new owner)"""


class ConsumerOwners:
    """The owners of one stream's consumers, kept on every replica and used by the leader."""

    def __init__(self, me: str, clock: Clock) -> None:
        self._me = me
        self._clock = clock
        self._owned: Counter[str] = Counter()
        self._promised: Counter[str] = Counter()
        self._leaving: dict[str, float] = {}

    # -- owned consumers

    def reloaded(self, states: Iterable[ConsumerState]) -> None:
        self._owned = Counter(state.owner for state in states)

    def came(self, owner: str) -> None:
        self._owned[owner] += 1

    def went(self, owner: str) -> None:
        self._owned[owner] -= 1
        if self._owned[owner] <= 0:
            del self._owned[owner]

    def owned(self, peer: str) -> int:
        return self._owned[peer]

    # -- possible owners

    def leave(self, peer: str) -> None:
        """Note that `peer` wants to own nothing: it shuts down, or its replica is not sound."""
        self._leaving[peer] = self._clock.monotonic() + LEAVING_SECONDS

    def stay(self, peer: str) -> None:
        """Note that `peer` can own consumers again."""
        self._leaving.pop(peer, None)

    def is_leaving(self, peer: str) -> bool:
        until = self._leaving.get(peer)
        if until is None:
            return False
        if self._clock.monotonic() >= until:
            del self._leaving[peer]
            return False
        return True

    def choose(self, able: Collection[str], near: str = "", *, push: bool = False) -> str:
        """Return the owner of a new consumer. `able`: voters that are connected and up to date; without any, the leader
        becomes the owner. `near`: the node of the client that creates it.

        A push consumer goes to `near` if possible: its creator usually subscribes to it, and all messages would cross
        the mesh otherwise. Other consumers go to the peer with the fewest."""
        candidates = [peer for peer in able if not self.is_leaving(peer)] or list(able) or [self._me]
        if push and near in candidates:
            return near

        def load(peer: str) -> tuple[int, bool, bool, str]:
            return self._owned[peer] + self._promised[peer], peer != near, peer != self._me, peer

        return min(candidates, key=load)

    @contextmanager
    def promise(self, peer: str) -> Iterator[None]:
        """Count one more consumer for `peer` while its creation is in progress."""
        self._promised[peer] += 1
        try:
            yield
        finally:
            self._promised[peer] -= 1
            if not self._promised[peer]:
                del self._promised[peer]

    # -- moves

    def must_move(self, present: Collection[str]) -> bool:
        """Return True when an owner is gone or is leaving. `present`: the connected voters."""
        return any(peer not in present or self.is_leaving(peer) for peer in self._owned)

    def moves(self, states: Iterable[ConsumerState], present: Collection[str], able: Collection[str]) -> list[Move]:
        """Return the necessary moves that are possible, at most MAX_MOVES. `able`: as for `choose`."""
        found: list[Move] = []
        heirs = [peer for peer in able if not self.is_leaving(peer)]
        planned: Counter[str] = Counter()
        for state in states:
            if state.owner in present and not self.is_leaving(state.owner):
                continue
            others = [peer for peer in heirs if peer != state.owner]
            if not others:
                continue
            heir = min(others, key=lambda peer: (self._owned[peer] + planned[peer], peer != self._me, peer))
            planned[heir] += 1
            found.append((state.cid, state.epoch, heir))
            if len(found) >= MAX_MOVES:
                break
        return found


def encode_moves(ts: int, moves: Iterable[Move]) -> bytes:
    """Return a CONSUMER_OWNER command."""
    body = json.dumps({"moves": [list(move) for move in moves]}, separators=(",", ":")).encode()
    return HEAD.pack(CONSUMER_OWNER, 0, ts) + body
