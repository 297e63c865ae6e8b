"""The simulated client behaves as a stock client does, as far as the product can tell."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session

PORT = 4222
GREETING = b'INFO {"server_name":"n1"}\r\n'


class Server(asyncio.Protocol):
    """Greets; is gone right after a client's first command for the first `rude` connections, answers PING on others."""

    def __init__(self, connections: list[Server], rude: int) -> None:
        self.connections = connections
        self.rude = rude
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.connections.append(self)
        self.transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if len(self.connections) <= self.rude:
            self.transport.abort()
        elif b"PING" in data:
            self.transport.write(b"PONG\r\n")


def test_a_session_dials_again_when_the_server_is_gone_before_it_answers_the_first_ping() -> None:
    deployment = Deployment(1, ())
    here, there = deployment.client("client"), deployment.client("server")
    connections: list[Server] = []
    listening = there.create_server(lambda: Server(connections, rude=2), "10.0.1.2", PORT)
    deployment.run_until_done(deployment.spawn(there, listening), 5.0)

    async def connect() -> Session:
        session = Session("one", [("10.0.1.2", PORT)])
        await session.connect(10.0)
        return session

    task = deployment.spawn(here, connect())
    deployment.run_until_done(task, 20.0)
    assert task.result().connected
    assert len(connections) == 3
    assert deployment.failures == []
