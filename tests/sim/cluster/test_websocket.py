"""The simulated client's WebSocket is strict, and what it sends is all that RFC 6455 lets a client send."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.protocol.websocket import Rules, UpgradeRequest, WebSocketReader, accept, parse
from testkit.sim.layout import WEB_PORT, Entrance
from testkit.sim.session import Session
from testkit.sim.websocket import BINARY, CLOSE, CONTINUED, LENGTHS, PING, PONG, TEXT, Broken, Frames, WebSocket, masked
from tests.sim.cluster.run import started

FINAL = 0x80


class Socket:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        assert name == "peername"
        return "10.0.0.1", WEB_PORT

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close


class Above:
    """The protocol of who uses the WebSocket."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data


def opened() -> tuple[WebSocket, Socket, Above]:
    above, socket = Above(), Socket()
    web = WebSocket(above, "c", 0)
    web.connection_made(socket)  # type: ignore[arg-type]
    request = parse(socket.written.removesuffix(b"\r\n\r\n"))
    assert isinstance(request, UpgradeRequest)
    socket.written = b""
    web.data_received(accept(request, Rules()))
    assert above.transport is web
    return web, socket, above


def served(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    assert len(payload) < 126
    return bytes([opcode | (FINAL if final else 0), len(payload)]) + payload


def test_a_server_reads_what_was_written_whatever_its_frames_are() -> None:
    web, socket, _ = opened()
    sent = [
        bytes([at % 251]) * size for at, size in enumerate([0, 1, 2, 125, 126, 127, 4096, 65_535, 65_536, 70_001] * 12)
    ]
    for data in sent:
        web.write(data)
    reader, got, opcodes = WebSocketReader(deflate=False), b"", set()
    reader.feed(socket.written)
    while (event := reader.next()) is not None:
        opcodes.add(event[0])
        got += event[1] if event[0] == BINARY else b""
    assert got == b"".join(sent) and opcodes == {BINARY, PING}


def test_frames_are_handed_on_as_they_come_and_pings_are_answered() -> None:
    web, socket, above = opened()
    data = served(BINARY, b"IN", final=False) + served(PING, b"p") + served(CONTINUED, b"FO")
    for at in range(len(data)):
        web.data_received(data[at : at + 1])
    assert above.got == b"INFO"
    assert socket.written[:2] == bytes([PONG | FINAL, 0x81]) and masked(socket.written[6:], socket.written[2:6]) == b"p"
    web.data_received(served(CLOSE, b"\x03\xe8bye"))
    assert socket.closed


@pytest.mark.parametrize(
    "data",
    [
        served(TEXT, b"x"),
        served(CONTINUED, b"x"),
        served(BINARY, b"x", final=False) + served(BINARY, b"y"),
        served(PING, b"", final=False),
        served(BINARY | 0x40, b"x"),
        bytes([BINARY | FINAL, 0x81, 0, 0, 0, 0, 1]),
        bytes([BINARY | FINAL, 126, 0, 1, 1]),
        bytes([BINARY | FINAL, 127, 0, 0, 0, 0, 0, 0, 0, 1, 1]),
        served(PONG, b"never asked"),
        served(CLOSE, b"1"),
        served(CLOSE, b"\x00\x01"),
    ],
)
def test_what_a_server_may_not_send_is_told(data: bytes) -> None:
    web, _, _ = opened()
    with pytest.raises(Broken):
        web.data_received(data)


def test_an_answer_that_does_not_agree_is_told() -> None:
    for answer in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: no\r\n\r\n"):
        web, socket = WebSocket(Above(), "c", 0), Socket()
        web.connection_made(socket)  # type: ignore[arg-type]
        with pytest.raises(Broken):
            web.data_received(answer)


def test_a_length_that_is_long_is_read_in_pieces() -> None:
    frames = Frames()
    data = bytes([BINARY | FINAL, 127]) + (70_000).to_bytes(8, "big") + b"x" * 70_000
    assert frames.feed(data[:5]) == [] and frames.feed(data[5:100]) == []
    assert frames.feed(data[100:]) == [(BINARY, b"x" * 70_000)]
    assert max(LENGTHS) < 70_000


def test_clients_come_by_websocket_where_that_is_chosen() -> None:
    with Entrance.chosen(web=True):
        deployment = started()

        async def connected() -> Session:
            session = Session("one", deployment.addresses())
            await session.connect()
            return session

        task = deployment.spawn(deployment.client("c"), connected())
        deployment.run_until_done(task, 10.0)
        assert task.result().info["port"] == WEB_PORT
    deployment.close()
