"""Strangers at the ports of a server: they send anything at all, or speak the protocol of servers without being one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from jetcluster.mesh.auth import NONCE_BYTES, Greeting, Handshake, Refused, RouteCredentials, derive_key
from jetcluster.mesh.frames import FrameError, FrameReader, Kind, frame
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.layout import AUTHORITY, CLIENT_PORT, LEAF_PORT, ROUTE_PORT, SECRET, Security
from testkit.sim.plain_tls import ALERT, CLIENT_HELLO, CLOSE_NOTIFY, DATA, FINISHED, HANDSHAKE, Context, record
from tests.sim.cluster.machine_faults import one

CROWDS = (1, 3, 12)
"""Strangers that come at a time: also more than a server listens to where limits are small."""
STAYS = 6.0
"""Seconds after which they go, at most: some before they are sent away."""
CLUSTERS = ("sim", "sim", "sim", "other", "")
JUNK = (
    b"",
    b"\x00" * 64,
    b"\xff" * 5000,
    b"GET / HTTP/1.1\r\nHost: sim\r\n\r\n",
    b"INFO {}\r\n",
    b"CONNECT {\r\n",
    b"PUB a 5\r\nhel",
    b"PUB " + b"a" * 6000 + b" 1\r\nx\r\n",
    frame(Kind.PROOF, b"x" * 32),
    frame(Kind.REFUSED, b"\x04no"),
    frame(Kind.INFO, b"{}"),
    frame(Kind.HELLO, b""),
)
HELLO = record(HANDSHAKE, CLIENT_HELLO)
OF_TLS = (
    HELLO,
    HELLO[:1],
    HELLO[:-1],
    HELLO + b"INFO {}\r\n",
    HELLO + record(HANDSHAKE, FINISHED),
    HELLO + record(HANDSHAKE, FINISHED + b"/elsewhere 10.0.0.1 0"),
    record(HANDSHAKE, FINISHED),
    record(ALERT, CLOSE_NOTIFY),
    record(DATA, b"CONNECT {}\r\n"),
    b"\x16" * 64,
)
"""Said to servers with TLS as well: hellos, some of them cut off, and what is nothing for a handshake."""


class Stranger(asyncio.Protocol):
    """One who says `first`, and answers what it is sent by `answer`."""

    def __init__(self, first: list[bytes], answer: Callable[[int, bytes], bytes]) -> None:
        self.transport: asyncio.Transport | None = None
        self.error: Exception | None = None
        self.gone = False
        self._first = first
        self._answer = answer
        self._reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        for piece in self._first:
            transport.write(piece)

    def data_received(self, data: bytes) -> None:
        for kind, start, end in self._reader.feed(data):
            try:
                said = self._answer(kind, self._reader.buffer[start:end])
            except (Refused, FrameError):
                return  # it is told that it must go
            except Violation as error:
                self.error = error
                return
            if said and self.transport is not None and not self.transport.is_closing():
                self.transport.write(said)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True


async def strangers(deployment: Deployment, rng: Random) -> None:
    """Some come to one server at once. Raises Violation where one without the secret is taken for a server."""
    machine = one(deployment, rng)
    if machine is not None:
        crowd = [_visit(deployment, machine.name, Random(rng.getrandbits(64))) for _ in range(rng.choice(CROWDS))]
        await asyncio.gather(*crowd)


async def _visit(deployment: Deployment, name: str, rng: Random) -> None:
    port = rng.choice([ROUTE_PORT, ROUTE_PORT, ROUTE_PORT, CLIENT_PORT, LEAF_PORT])
    deployment.strangers[name] = deployment.strangers.get(name, 0) + 1
    speaks = port == ROUTE_PORT and rng.random() < 0.7
    who = _imposter(deployment, rng) if speaks else Stranger([junk(rng)], _says_nothing)
    try:
        async with asyncio.timeout(STAYS):
            await asyncio.get_running_loop().create_connection(
                lambda: who, deployment.servers[name].ip, port, ssl=_context(rng)
            )
    except (OSError, TimeoutError):
        return
    await asyncio.sleep(rng.uniform(0.0, STAYS))
    if who.transport is not None:
        who.transport.abort()
    if who.error is not None:
        raise who.error


def _context(rng: Random) -> Any:
    """Most shake hands, where there is TLS: with a certificate, with one that no server takes, or without any."""
    if not Security.mode or rng.random() < 0.4:
        return None
    return Context(rng.choice([f"{AUTHORITY} x 0", f"{AUTHORITY} x 0", "/elsewhere x 0", ""]))


def junk(rng: Random) -> bytes:
    if Security.mode and rng.random() < 0.4:
        return rng.choice(OF_TLS)
    return rng.choice(JUNK) if rng.random() < 0.7 else rng.randbytes(rng.randint(1, 300))


def _says_nothing(kind: int, body: bytes) -> bytes:
    return b""


def imposter(greeting: Greeting, secret: str, rng: Random) -> Stranger:
    """One that says to be a server. With the right secret it is taken for one as far as that goes, and tells nonsense
    then, as it has no key; it may also lose its way in the greeting."""
    handshake = Handshake(greeting, derive_key(greeting.cluster, RouteCredentials(SECRET, secret)), dialer=True)
    hello = handshake.start()
    if rng.random() < 0.3:
        at = rng.randrange(4, len(hello))
        hello = rng.choice([hello[:at], hello[:at] + bytes([hello[at] ^ 1 << rng.randrange(8)]) + hello[at + 1 :]])
    at = rng.randrange(len(hello))

    def answer(kind: int, body: bytes) -> bytes:
        if kind == Kind.PROOF and secret != SECRET:
            raise Violation("a stranger without the secret is taken for a server")
        return handshake.receive(kind, body) if not handshake.done else frame(rng.choice(list(Kind)), junk(rng))

    def finished(kind: int, body: bytes) -> bytes:
        said = answer(kind, body)
        return said + frame(Kind.INFO, junk(rng)) if handshake.done and not said else said

    return Stranger([hello[:at], hello[at:]] if at else [hello], finished)


def _imposter(deployment: Deployment, rng: Random) -> Stranger:
    known = [machine.peer_id for machine in deployment.machines.values() if machine.peer_id]
    peer = rng.choice(known) if known and rng.random() < 0.3 else _token(rng)
    greeting = Greeting(
        peer, _token(rng), rng.choice(["n9", "n1", "n" * 200]), rng.choice(CLUSTERS), rng.randbytes(NONCE_BYTES),
        rng.random() < 0.9,
    )  # fmt: skip
    return imposter(greeting, SECRET if rng.random() < 0.4 else "guessed", rng)


def _token(rng: Random) -> str:
    """As long as the id of a server."""
    return f"{rng.getrandbits(32):08x}"
