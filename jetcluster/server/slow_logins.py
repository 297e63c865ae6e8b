"""`SlowLogins`: passwords that take long to be checked (bcrypt) are checked in threads, in an order that is fair.

Strangers who guess passwords must neither stand in the way of those who know theirs, nor get all of the machine. So
addresses have their turns one after the other, and of one address the users; of one user who came last is first: who
has waited longest is the first to give up. A password that several try at the same time is checked once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("jetcluster.server")

MAX_THREADS: Final = 2
MAX_WAITING: Final = 1024
"""Logins; when there are more, one of the address that has the most of them is refused."""
PATIENCE: Final = 10.0
"""Seconds that a connection has to log in once its password waits to be checked, instead of those it had before: it has
said what it had to say."""


class _Entry:
    """One login that waits."""

    __slots__ = ("key", "over", "unless", "work")

    def __init__(self, key: Hashable, work: Callable[[], None], unless: Callable[[], bool]) -> None:
        self.key = key
        self.work = work
        self.unless = unless
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        """Nobody waits for it any more."""
        return self.over.done() or self.unless()


class SlowLogins:
    """One per server."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, OrderedDict[str, list[_Entry]]] = OrderedDict()
        """By address and user; the first address is the next, and of it the first user, and of that the last entry."""
        self._same: dict[Hashable, list[_Entry]] = {}
        """Those that wait, or are being checked, by what is checked."""
        self._running: set[Hashable] = set()
        self._threads: ThreadPoolExecutor | None = None
        self.waiting = 0
        self.refused = 0

    async def check(
        self, address: str, user: str, key: Hashable, work: Callable[[], None], unless: Callable[[], bool]
    ) -> bool:
        """Does `work`, or finds it done by another one of the same `key`. False when there are too many before it, or
        `unless` is true when its turn comes."""
        entry = _Entry(key, work, unless)
        self._same.setdefault(key, []).append(entry)
        if key not in self._running:
            self._queue.setdefault(address, OrderedDict()).setdefault(user, []).append(entry)
            self.waiting += 1
            if self.waiting > MAX_WAITING:
                self._make_room()
            self._start()
        return await entry.over

    def stop(self) -> None:
        """Nothing is checked any more."""
        self._queue.clear()
        self.waiting = 0
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while len(self._running) < MAX_THREADS and (entry := self._next()) is not None:
            if self._threads is None:
                from concurrent.futures import ThreadPoolExecutor

                self._threads = ThreadPoolExecutor(MAX_THREADS, "slow")
            self._running.add(entry.key)
            running = asyncio.get_running_loop().run_in_executor(self._threads, entry.work)
            running.add_done_callback(lambda done, key=entry.key: self._checked(key, done))  # type: ignore[misc]

    def _checked(self, key: Hashable, done: asyncio.Future[None]) -> None:
        self._running.discard(key)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("a password could not be checked", exc_info=error)
        for entry in self._same.pop(key, ()):
            if not entry.over.done():
                entry.over.set_result(True)
        if not done.cancelled():
            self._start()

    def _next(self) -> _Entry | None:
        """The next one that somebody still waits for, taken out."""
        while self._queue:
            address, users = self._queue.popitem(last=False)
            user, entries = users.popitem(last=False)
            entry = entries.pop()
            self.waiting -= 1
            if entries:
                users[user] = entries
            if users:
                self._queue[address] = users
            if not entry.gone and entry.key not in self._running:
                return entry
            if entry.gone:
                self._drop(entry)
        return None

    def _drop(self, entry: _Entry) -> None:
        same = self._same.get(entry.key)
        if same is not None and entry in same:
            same.remove(entry)
            if not same:
                del self._same[entry.key]
        if not entry.over.done():
            entry.over.set_result(False)

    def _make_room(self) -> None:
        """Without those that are gone; if there are none, without the oldest one of the user who has the most."""
        before = self.waiting
        counts: dict[str, int] = {}
        for address, users in list(self._queue.items()):
            for user, entries in list(users.items()):
                for entry in [entry for entry in entries if entry.gone]:
                    entries.remove(entry)
                    self.waiting -= 1
                    self._drop(entry)
                if entries:
                    counts[address] = counts.get(address, 0) + len(entries)
                else:
                    del users[user]
            if not users:
                del self._queue[address]
        if self.waiting < before or not counts:
            return
        users = self._queue[max(counts, key=lambda address: counts[address])]
        user = max(users, key=lambda user: len(users[user]))
        entry = users[user].pop(0)
        self.waiting -= 1
        self.refused += 1
        if not users[user]:
            del users[user]
        self._drop(entry)
