"""Simulated TLS: handshakes that succeed and fail, and what a connection under it does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.loop import SimLoop
from testkit.sim.plain_tls import (
    ALERT,
    CLIENT_HELLO,
    CLOSE_NOTIFY,
    DATA,
    HANDSHAKE,
    MAX_RECORD,
    Context,
    InClear,
    record,
)
from testkit.sim.tls_ports import AcceptedSocket, ListeningSocket

pytestmark = pytest.mark.sim

PORT = 5000
SERVER = Context("/tls 10.0.1.2 0")
STRICT = Context("/tls 10.0.1.2 0", "/tls")
CLIENT = Context("/tls client 0", "/tls")


class End(asyncio.Protocol):
    """One end of a connection, and what came of it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = b""
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Rig:
    """Two machines, and a port on the second one."""

    def __init__(self) -> None:
        self.deployment = Deployment(3, ())
        self.here, self.there = self.deployment.client("a"), self.deployment.client("b")
        self.ip = self.deployment.clients["b"].host.ip
        self.port = self.do(self.there, self._listen())

    async def _listen(self) -> ListeningSocket:
        return ListeningSocket(self.there, self.ip, PORT)

    def do(self, loop: SimLoop, work: Any, most: float = 30.0) -> Any:
        task = self.deployment.spawn(loop, work)
        self.deployment.run_until_done(task, most)
        return task.result()

    async def accept(self, context: Context | None, end: End, seconds: float = 2.0) -> End:
        """Raises OSError."""
        accepted, _ = await self.there.sock_accept(self.port)
        await self.there.connect_accepted_socket(lambda: end, accepted, ssl=context, ssl_handshake_timeout=seconds)
        return end

    async def dial(self, context: Context | None, end: End, name: str = "", seconds: float = 2.0) -> End:
        """Raises OSError."""
        await self.here.create_connection(
            lambda: end, self.ip, PORT, ssl=context, server_hostname=name or self.ip, ssl_handshake_timeout=seconds
        )
        return end

    def both(self, server: Context | None, client: Context | None, name: str = "") -> tuple[Any, Any, End, End]:
        """Outcome or error at the accepting and at the connecting end, and the two ends."""
        found: dict[str, Any] = {}
        there, here = End(), End()

        async def kept(which: str, work: Any) -> None:
            try:
                found[which] = await work
            except OSError as error:
                found[which] = error

        accepting = self.deployment.spawn(self.there, kept("there", self.accept(server, there)))
        self.do(self.here, kept("here", self.dial(client, here, name)))
        self.deployment.run_until_done(accepting, 30.0)
        self.deployment.run(1.0)
        return found["there"], found["here"], there, here


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert rig.deployment.failures == []
    rig.deployment.close()


@pytest.mark.parametrize("server", [SERVER, STRICT])
def test_two_ends_know_each_other_and_data_goes_both_ways(rig: Rig, server: Context) -> None:
    _, _, there, here = rig.both(server, CLIENT)
    shown = here.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert shown == server.certificate.encode()
    asked = there.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    assert asked == (CLIENT.certificate.encode() if server.authority else None)
    data = b"x" * (3 * MAX_RECORD + 5)
    here.transport.write(data)
    there.transport.writelines([b"a", b"b"])
    rig.deployment.run(1.0)
    assert there.got == data and here.got == b"ab"


def test_an_end_that_closes_sends_all_and_the_other_one_hears_of_it(rig: Rig) -> None:
    _, _, there, here = rig.both(SERVER, CLIENT)
    here.transport.write(b"last")
    here.transport.close()
    here.transport.write(b"too late")
    rig.deployment.run(1.0)
    assert there.got == b"last" and there.lost == here.lost == [None]


@pytest.mark.parametrize(
    ("server", "client", "name"),
    [
        (STRICT, Context("", "/tls"), ""),
        (STRICT, Context("/elsewhere client 0", "/tls"), ""),
        (Context("/elsewhere 10.0.1.2 0"), CLIENT, ""),
        (SERVER, CLIENT, "10.0.1.9"),
    ],
)
def test_a_certificate_that_is_not_good_ends_both_ends(rig: Rig, server: Context, client: Context, name: str) -> None:
    accepted, dialled, there, here = rig.both(server, client, name)
    assert isinstance(accepted, ssl.SSLError) and there.transport is None
    if server is STRICT:  # the end that connects is done before the other one has seen its certificate
        assert isinstance(here.lost[0], ssl.SSLError)
    else:
        assert isinstance(dialled, ssl.SSLError) and here.transport is None


def test_who_never_answers_is_given_up(rig: Rig) -> None:
    _, dialled, _, here = rig.both(None, CLIENT)
    assert isinstance(dialled, ConnectionAbortedError) and here.transport is None and here.lost == []
    accepted, _, there, _ = rig.both(SERVER, None)
    assert isinstance(accepted, ConnectionAbortedError) and there.transport is None and there.lost == []


def test_what_is_said_in_clear_is_kept_to_its_end(rig: Rig) -> None:
    class Talker(End):
        def connection_made(self, transport: Any) -> None:
            transport.write(b"INFO {}\r\n")
            transport.write(b"-ERR 'no'\r\n")

    there, here = Talker(), End()
    rig.deployment.spawn(rig.there, rig.accept(None, there))
    with pytest.raises(InClear) as found:
        rig.do(rig.here, rig.dial(CLIENT, here))
    assert found.value.said == b"INFO {}\r\n-ERR 'no'\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"INFO {}\r\n",
        record(DATA, b"x"),
        record(HANDSHAKE, b"?"),
        record(ALERT, CLOSE_NOTIFY),
        b"\x16" * 64,
        record(HANDSHAKE, CLIENT_HELLO) * 2,
    ],
)
def test_a_hello_that_is_none_is_refused(rig: Rig, said: bytes) -> None:
    class Talker(End):
        def connection_made(self, transport: Any) -> None:
            transport.write(said)

    there, here = End(), Talker()
    rig.deployment.spawn(rig.here, rig.dial(None, here))
    with pytest.raises(ssl.SSLError):
        rig.do(rig.there, rig.accept(SERVER, there))


def test_bytes_that_are_no_record_end_a_connection_that_is_secure(rig: Rig) -> None:
    _, _, there, here = rig.both(SERVER, CLIENT)
    there.transport.below.write(b"MSG a 1 1\r\nx\r\n")  # as who writes to the transport of before would
    rig.deployment.run(1.0)
    assert isinstance(here.lost[0], InClear) and here.got == b""


def test_a_connection_that_was_in_clear_goes_on_with_tls(rig: Rig) -> None:
    _, _, there, here = rig.both(None, None)
    there.transport.write(b"INFO\r\n")
    rig.deployment.run(0.1)

    async def secured(loop: SimLoop, end: End, context: Context, **options: Any) -> None:
        end.transport = await loop.start_tls(end.transport, end, context, **options)

    accepting = rig.deployment.spawn(rig.there, secured(rig.there, there, SERVER, server_side=True))
    rig.do(rig.here, secured(rig.here, here, CLIENT, server_hostname=rig.ip))
    rig.deployment.run_until_done(accepting, 5.0)
    here.transport.write(b"CONNECT\r\n")
    rig.deployment.run(0.1)
    assert (here.got, there.got) == (b"INFO\r\n", b"CONNECT\r\n")
    assert not here.transport.can_write_eof()
    here.transport.abort()
    rig.deployment.run(0.1)
    assert here.lost == [None] and isinstance(there.lost[0], ConnectionResetError)


def test_who_reads_no_more_gets_the_rest_later(rig: Rig) -> None:
    _, _, there, here = rig.both(SERVER, CLIENT)
    here.transport.pause_reading()
    there.transport.write(b"x")
    rig.deployment.run(0.1)
    assert here.got == b"" and not here.transport.is_reading()
    here.transport.resume_reading()
    rig.deployment.run(0.1)
    assert here.got == b"x"


def test_an_accepted_socket_is_looked_at_and_not_read(rig: Rig) -> None:
    here = End()
    rig.do(rig.here, rig.dial(None, here))
    accepted: AcceptedSocket = rig.do(rig.there, rig.port.accepted())[0]
    with pytest.raises(BlockingIOError):
        accepted.recv(1, 2)
    came: list[int] = []
    rig.there.add_reader(accepted, came.append, 1)
    here.transport.write(b"ab")
    rig.deployment.run(0.1)
    assert came == [1] and accepted.recv(1, 2) == b"a" and accepted.recv(8, 2) == b"ab"
    rig.there.remove_reader(accepted)
    here.transport.abort()
    rig.deployment.run(0.1)
    with pytest.raises(ConnectionResetError):
        accepted.recv(1, 2)


def test_without_descriptors_nothing_is_accepted(rig: Rig) -> None:
    here = End()
    rig.do(rig.here, rig.dial(None, here))
    machine = rig.deployment.clients["b"]
    machine.descriptors = None
    with pytest.raises(OSError, match="Too many"):
        rig.do(rig.there, rig.port.accepted())
    machine.descriptors = 20
    assert rig.do(rig.there, rig.port.accepted())[0].fileno() == 20
