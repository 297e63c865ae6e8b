"""The exam of the client protocol: what a server says to one client, line by line, and what becomes of one who goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.layout import CLIENT_PORT, Security
from testkit.sim.plain_tls import of_client
from testkit.sim.session import Msg, Session
from tests.sim.cluster.dialogues import (
    ACCOUNTS,
    DIALOGUES,
    PING,
    PONG,
    RIGHTS,
    TOO_MANY,
    Dialogue,
    answers,
    connect,
    message,
    publish,
    refused,
)
from tests.sim.cluster.exam import SPREAD, Exam, with_accounts
from tests.sim.cluster.judges import Exact

SAID = 14
"""Dialogues of a part."""
SILENCE = 0.5
"""Seconds after which nothing more comes, unless processors are slow."""
LATE = 10.0
PLACES = 2
"""Connections that the account `few` may have at a server."""
LAPSES = 1.5
"""Seconds after which an answer of `twice` is late."""
NO_ANSWER = refused("Publish to", "private") + PONG
ROUNDS = 10
"""Clients that go, one after the other."""
FLOOD = 8000
"""Messages that a client sends before it goes: more than one turn."""
LAST_WORDS = (1, 100, FLOOD)


class Line(asyncio.Protocol):
    """A client that says what it is told to, and keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.info: dict[str, Any] = {}
        """The first INFO of the server."""
        self.over = False
        self.came = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        self.came.set()

    def say(self, said: bytes) -> None:
        assert self.transport is not None
        self.transport.write(said)

    async def answer(self, wanted: bytes, *, ends: bool = False) -> bytes:
        """All that comes until that is what is wanted and nothing else does."""
        try:
            while not self.over:
                whole = answers(self.heard) == wanted and not ends
                async with asyncio.timeout(SILENCE if whole else LATE):
                    await self.came.wait()
                self.came.clear()
        except TimeoutError:
            pass
        found, self.heard = answers(self.heard), b""
        return found

    def go(self, *, at_once: bool) -> None:
        assert self.transport is not None
        (self.transport.abort if at_once else self.transport.close)()


async def line_to(deployment: Deployment, name: str) -> Line:
    """A connection to this server, with INFO and the handshake behind it."""
    loop, host, line = asyncio.get_running_loop(), deployment.servers[name].ip, Line()
    kind = Security.kind(int(deployment.scheduler.now * 1e6))  # any, but the same in each replay
    first = kind == "first"
    await loop.create_connection(
        lambda: line, host, CLIENT_PORT,
        ssl=of_client() if first else None, server_hostname=host if first else None,
    )  # fmt: skip
    async with asyncio.timeout(LATE):
        while b"\r\n" not in line.heard:
            await line.came.wait()
            line.came.clear()
    line.info, line.heard = json.loads(line.heard.removeprefix(b"INFO ").partition(b"\r\n")[0]), b""
    if kind == "after":
        assert line.transport is not None
        line.transport = await loop.start_tls(line.transport, line, of_client(), server_hostname=host)
    return line


class LineExam(Exam):
    name = "exam-lines"
    weight = 0
    judges = (Exact,)
    promises = (
        "what a server says to a client is, to the byte, what nats-server says",
        "an account has as many connections as its limit says, and whoever goes gives the place back, in whatever way",
        "what a client sent before it closed its connection is delivered, in order",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """Accounts of its own, so that nobody else says anything there."""
        with_accounts(deployment, ACCOUNTS)

    async def check(self) -> None:
        if "LINES" not in self.deployment.servers[self.members[0]].config:
            return  # leaf clusters have no accounts
        await self.examine([self._dialogues, self._rights, self._places, self._last_words], 4)

    # ---- clients

    async def _enters(self, name: str) -> bool:
        """True when one more client of the account is let in. It stays then."""
        line = await line_to(self.deployment, name)
        line.say(connect("few") + PING)
        found = await line.answer(PONG)
        if found != PONG:
            self.equal("what one hears who is too many", (found, line.over), (TOO_MANY, True))
            return False
        self.inside.append(line)
        return True

    # ---- parts

    async def _dialogues(self, session: Session) -> None:
        await self._held(self.rng.sample(DIALOGUES, SAID))

    async def _rights(self, session: Session) -> None:
        """Users that may not do everything, nor come by every port."""
        await self._held(RIGHTS)
        line = await line_to(self.deployment, self.rng.choice(self.members))
        ask, private = publish("r.ask", reply="private"), publish("private")
        line.say(connect("twice") + b"SUB r.ask 1\r\n" + ask + private + PING)
        wanted = message("r.ask", 1, reply="private") + PONG
        self.equal("an answer", await line.answer(wanted), wanted)
        await asyncio.sleep(LAPSES)
        line.say(private + PING)
        self.equal("an answer that comes late", (await line.answer(NO_ANSWER))[-len(NO_ANSWER) :], NO_ANSWER)
        line.go(at_once=False)

    async def _held(self, dialogues: Sequence[Dialogue]) -> None:
        for one in dialogues:
            line = await line_to(self.deployment, self.rng.choice(self.members))
            for said, wanted in one.turns:
                line.say(said)
                self.equal(one.name, await line.answer(wanted, ends=one.ends), wanted)
            self.equal(f"the end of {one.name}", line.over, one.ends)
            line.go(at_once=True)
            await asyncio.sleep(SPREAD)  # or what it subscribed to counts at other servers for the next one

    async def _places(self, session: Session) -> None:
        """Some go with a word, some without, and some while what they sent waits for its turn."""
        self.inside: list[Line] = []
        name = self.rng.choice(self.members)
        for _ in range(PLACES):
            self.equal("a place", await self._enters(name), True)
        for at in range(ROUNDS):
            self.equal("a place more", await self._enters(name), False)
            line = self.inside.pop(self.rng.randrange(PLACES))
            sends, at_once = self.rng.choice([0, 1, FLOOD, FLOOD]), self.rng.random() < 0.7
            line.say(publish("nobody") * sends)
            await asyncio.sleep(self.rng.uniform(0.0, 0.001))
            line.go(at_once=at_once)
            await asyncio.sleep(SPREAD)
            self.equal(f"the place of one who went {'at once' if at_once else 'orderly'} after {sends} messages, {at}",
                       await self._enters(name), True)  # fmt: skip
        for line in self.inside:
            line.go(at_once=False)
        await asyncio.sleep(SPREAD)

    async def _last_words(self, session: Session) -> None:
        got: list[Msg] = []
        listener = await self.session("listener", self.rng.choice(self.members), user="lines")
        listener.subscribe("last.words", got.append)
        await listener.flush()
        await asyncio.sleep(SPREAD)
        line = await line_to(self.deployment, self.rng.choice(self.members))
        count = self.rng.choice(LAST_WORDS)
        line.say(connect() + b"".join(publish("last.words", b"%d" % at) for at in range(count)))
        line.go(at_once=False)
        await asyncio.sleep(2 * SPREAD)
        self.equal("the last words", [msg.payload for msg in got], [b"%d" % at for at in range(count)])
        await listener.close()
