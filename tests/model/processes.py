"""Histories against a running server, over its wire."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from testkit.client import Client, Msg
from tests.model.answers import Answer, parts
from tests.model.history import Step
from tests.model.player import Differs, Disturbed, Player, shrink
from tests.model.pushed import PATIENCE, Pushed
from tests.model.rules import CLUSTERED, OURS, PEER, Rules
from tests.model.stream import Headers

LENIENT = "jetstream { strict: false }"
"""Configuration with which nats-server passes over unknown keys, as this server does."""
_WIRES = itertools.count(1)


class Wire:
    """A connection of the model's player."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.number = 0
        self.inbox = f"{client.inbox.decode()}m{next(_WIRES)}"
        self.pushed = Pushed()
        self.known: set[str] = set()

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def ask(
        self, subject: str, headers: Headers, body: bytes, wanted: int, patience: float = 0.0
    ) -> list[Answer]:
        self.number += 1
        inbox = f"{self.inbox}.{self.number}"
        found: list[Answer] = []
        came = asyncio.Event()

        def take(msg: Msg) -> None:
            found.append(_answer(msg, inbox))
            came.set()

        sid = self.client.subscribe(inbox, take)
        self.client.publish(subject, body, inbox.encode(), dict(headers) or None)
        try:
            async with asyncio.timeout(PATIENCE + patience):
                while len(found) < wanted:
                    came.clear()
                    await came.wait()
        except TimeoutError:
            pass
        await self.client.flush()
        self.client.unsubscribe(sid)
        return found

    def listen(self, subject: str) -> None:
        if subject not in self.known:
            self.known.add(subject)
            self.client.subscribe(subject, self._take)

    def _take(self, msg: Msg) -> None:
        self.pushed.add(_answer(msg))

    async def heard(self, wanted: int) -> list[Answer]:
        return await self.pushed.heard(wanted)


def _answer(msg: Msg, inbox: str = "") -> Answer:
    status, own = decoded(msg.header)
    where = msg.subject.decode()
    return Answer(
        status, own, msg.data, "" if where == inbox else where, parts(msg.reply.decode()) if msg.reply else ""
    )


def decoded(raw: bytes) -> tuple[str, Headers]:
    first, *lines = raw.decode().split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first.removeprefix("NATS/1.0").strip(), tuple((key, value.strip()) for key, _, value in pairs)


async def without_streams(client: Client) -> None:
    for name in (await client.api("STREAM.NAMES"))["streams"] or []:
        await client.api(f"STREAM.DELETE.{name}")


def rules_of(server: str, size: int) -> Rules:
    """The rules of a cluster of `size` servers of one kind."""
    if server == "nats-server":
        return PEER
    return OURS if size == 1 else CLUSTERED


async def play(wire: Wire, rules: Rules, history: Sequence[Step]) -> Player:
    """Raises Differs; a history that is disturbed ends early."""
    await without_streams(wire.client)
    await wire.sleep(rules.rest)
    await wire.heard(0)
    player = Player(wire, rules)
    try:
        await player.play(history)
    except Disturbed:
        player.disturbed = True
    return player


async def explained(wire: Wire, rules: Rules, history: Sequence[Step], error: Differs) -> str:
    """The difference, and as short a history as shows it."""

    async def fails(some: Sequence[Step]) -> bool:
        try:
            await play(wire, rules, some)
        except Differs as error:
            found.append(str(error))
            return True
        return False

    found = [f"{error} (not again)"]
    short = await shrink(history[: error.at + 1], fails, 80)
    return found[-1] + "\n" + "\n".join(f"    {step}" for step in short)
