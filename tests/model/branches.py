"""The model where answers may get lost: each request without an answer has happened, or has not, or will.

A `World` is one way in which all may have gone. An answer leaves those that give it; where none does, nothing that may
have happened explains it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import NamedTuple

from tests.model.answers import Answer
from tests.model.player import compared
from tests.model.reading import Unknown
from tests.model.rules import Rules
from tests.model.server import API, DIRECT, Server
from tests.model.stream import Headers

MOST_OPEN = 3
"""Requests of which nobody knows whether they still happen."""
MOST_WORLDS = 200
NOTHING_SAID = {10005, 10008, 10044}
"""Errors of a cluster that is not whole, and of a server that it has removed; those with status 503 and 429 as well."""
READS = ("STREAM.INFO", "STREAM.MSG.GET", "STREAM.NAMES", "STREAM.LIST", "CONSUMER.INFO", "CONSUMER.NAMES")


class Request(NamedTuple):
    subject: str
    headers: Headers
    body: bytes

    @property
    def reads(self) -> bool:
        """It changes nothing."""
        return self.subject.startswith((DIRECT, *(API + one for one in READS)))


class TooMany(Exception):
    """Nobody can tell any more what happened."""


class World(NamedTuple):
    server: Server
    open: tuple[Request, ...] = ()

    def futures(self, now: float) -> Iterator[World]:
        """This one, and those in which some of what is open has happened meanwhile."""
        yield World(self.server.branch(), self.open)
        if any(stream.batches for stream in self.server.streams.values()):
            led = self.server.branch()  # by another server, which knows nothing of open batches
            for stream in led.streams.values():
                stream.batches.clear()
            yield World(led, self.open)
        for count in range(1, len(self.open) + 1):
            for chosen in itertools.permutations(range(len(self.open)), count):
                server = self.server.branch()
                for at in chosen:
                    server.ask(*self.open[at], now)
                yield World(server, tuple(one for at, one in enumerate(self.open) if at not in chosen))


class Branches:
    def __init__(self, rules: Rules) -> None:
        self.worlds = [World(Server(rules))]

    def answered(self, request: Request, found: list[Answer], now: float) -> list[str]:
        """Differences of an answer that no world explains, as the first world sees them. Raises TooMany."""
        if request.reads and _says_nothing(found):
            return []  # also of the worlds, where it depends on times in some what the answer should be
        kept: list[World] = []
        told: list[str] = []
        for world in self.worlds:
            for future in world.futures(now):
                wrong = _wrong(future.server, request, found, now)
                told = told or wrong
                if not wrong:
                    kept.append(future)
        if kept:
            self._keep(kept)
            return []
        if request.reads:
            return told
        if _says_nothing(found):
            self.lost(request)
            return []
        return told

    def lost(self, request: Request) -> None:
        """There was no answer. Raises TooMany."""
        if not request.reads:
            self._keep([World(world.server, (*world.open, request)) for world in self.worlds])

    def settled(self, now: float) -> None:
        """Nothing that is open happens any more. Raises TooMany."""
        self._keep([World(future.server) for world in self.worlds for future in world.futures(now)])

    def _keep(self, worlds: list[World]) -> None:
        different = {repr((one.server.streams, one.open)): one for one in worlds}
        self.worlds = list(different.values())
        if len(self.worlds) > MOST_WORLDS or max(len(one.open) for one in self.worlds) > MOST_OPEN:
            raise TooMany


def _wrong(server: Server, request: Request, found: list[Answer], now: float) -> list[str]:
    try:
        return compared(server.ask(*request, now), found)
    except Unknown:  # which messages it is about depends on times that nobody was told
        return []


def _says_nothing(found: list[Answer]) -> bool:
    """An answer that a client gets while a cluster is not whole."""
    if len(found) != 1 or found[0].status.startswith("503"):
        return True
    try:
        error = json.loads(found[0].data)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return error["code"] in (503, 429) or error["err_code"] in NOTHING_SAID
