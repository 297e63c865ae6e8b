"""Twins for the server's tests: a transport without a socket, and a server on manual time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from jetcluster.auth.authenticator import Authenticator, AuthResult
from jetcluster.clock import SystemClock
from jetcluster.config.options import ClusterOptions, JetStreamOptions, Options
from jetcluster.protocol.bus import Outgoing, Valve
from jetcluster.protocol.interest import NEAR, RemotePeer
from jetcluster.server.accounts.subscription import LeafPeer
from jetcluster.server.client.client import Client
from jetcluster.server.server import Server
from testkit.twins.time import ManualTime, SeededRng

QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'


def options_of(*, cluster_name: str = "", domain: str = "", jetstream: bool = False, **fields: Any) -> Options:
    """Options without a configuration file. With a domain there is JetStream, too."""
    return Options(
        cluster=ClusterOptions(name=cluster_name),
        jetstream=JetStreamOptions(enabled=jetstream or bool(domain), domain=domain),
        **fields,
    )


class FakeTransport(asyncio.Transport):
    """Keeps what is written. `jammed` leaves it in the buffer, as a peer that does not read does."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.buffered = 0
        self.jammed = False
        self.reading = True
        self.closing = False
        self.aborted = False
        self.eof = False
        self.protocol: Any = None
        self.high = 64 * 1024

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: Any) -> None:
        assert not self.eof, "write after the end"
        self.written += data
        if self.jammed:
            before, self.buffered = self.buffered, self.buffered + len(data)
            if before <= self.high < self.buffered:
                self.protocol.pause_writing()

    def drain(self) -> None:
        """The peer reads everything."""
        was, self.buffered, self.jammed = self.buffered, 0, False
        if was > self.high:
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class FakeAuthenticator(Authenticator):
    """Without options; `check` is the test's."""

    required = True

    def __init__(self) -> None:
        super().__init__(Options())


class Nobody(FakeAuthenticator):
    """Lets nobody in."""

    def check(self, *_: Any, **__: Any) -> AuthResult:
        raise PermissionError("nobody comes in")


class ServerRig:
    """A server that never opens a port, on time that moves by `time.advance`."""

    def __init__(self, authenticator: Authenticator | None = None, **options: Any) -> None:
        self.time = ManualTime()
        found = options_of(**options)
        self.server = Server(found, authenticator or Authenticator(found), self.time, SeededRng(7), self.time)
        self.router = self.server.account("$G")

    def client(self, *lines: bytes, connect: bytes = QUIET) -> Peer:
        return Peer(self, connect, *lines)


class Turns:
    """The loop's timers, a turn at a time; what is for later never comes."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.taken: list[float] = []
        """Processor seconds of each turn in which there was something to do."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Turns:
        self._soon.append((callback, args))
        return self

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Turns:
        return self

    def cancel(self) -> None:
        """Nothing that is for later comes anyway."""

    def advance(self, seconds: float) -> None:
        due, self._soon = self._soon, []
        began = time.process_time()
        for callback, args in due:
            callback(*args)
        if due:
            self.taken.append(time.process_time() - began)

    def run_out(self) -> list[float]:
        """Processor seconds of each turn until nothing is left to do."""
        first = len(self.taken)
        while self._soon:
            self.advance(0)
        return self.taken[first:]


class RealTime(ServerRig):
    """Its server's clock is the machine's."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.time = self.turns  # type: ignore[assignment]
        self.server = Server(Options(), Authenticator(Options()), SystemClock(), SeededRng(7), self.turns)
        self.router = self.server.account("$G")


class Peer:
    """One client as its user sees it."""

    def __init__(self, rig: ServerRig, *lines: bytes) -> None:
        self.rig = rig
        self.connection: Client = rig.server.new_client()
        self.transport = FakeTransport()
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.info = self.read()
        if any(lines):
            self.send(*lines)
            self.read()

    def send(self, *lines: bytes) -> None:
        self.connection.data_received(b"".join(line if line.endswith(b"\n") else line + b"\r\n" for line in lines))

    def read(self) -> bytes:
        """Everything written since the last read, after the loop's turn is over."""
        self.rig.time.advance(0)
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return data

    def ask(self, *lines: bytes) -> bytes:
        self.send(*lines)
        return self.read()

    @property
    def closed(self) -> str:
        return self.connection.close_reason


class FakePeer:
    """A link to another node that remembers what was sent on it."""

    route_id: int | None = None

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id
        self.pending = 0
        self.distance = NEAR
        self.valve = Valve()
        self.sent: list[tuple[str, bytes, bytes, list[bytes], bytes, bytes]] = []
        self.asked: list[tuple[str, bytes, int]] = []
        self.sent_many: list[tuple[str, bytes, list[bytes], list[Outgoing]]] = []

    @property
    def server_name(self) -> str:
        return self.peer_id

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        self.sent.append((account, subject, reply, queues, headers, payload))

    def send_run(self, account: str, messages: list[Outgoing], size: int) -> None:
        assert size == sum(map(len, itertools.chain.from_iterable(messages)))
        for subject, reply, headers, payload in messages:
            self.send_msg(account, subject, reply, [], headers, payload)

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        self.sent_many.append((account, target, queues, list(messages)))

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        self.asked.append((account, target, mark))


class FakeLeaf(FakePeer, LeafPeer):
    """One link of account B; `spoke` is this end's."""

    kind = "client"
    remote_cluster = b"L"
    account = "B"
    joined = True

    def __init__(self, spoke: bool, peer_id: str = "leaf") -> None:
        super().__init__(peer_id)
        self.spoke = spoke
        self.told: dict[bytes, int] = {}

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        self.told[subject] = self.told.get(subject, 0) + change
        if not self.told[subject]:
            del self.told[subject]
