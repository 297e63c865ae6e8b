"""The simulated network behaves as TCP does, as far as the product can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.loop import SimLoop
from testkit.sim.network import FEW

PORT = 5000


class End(asyncio.Protocol):
    """Keeps what happens to one end of a connection."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = b""
        self.pieces = 0
        self.writes: list[str] = []
        self.lost: list[BaseException | None] = []
        self.eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def eof_received(self) -> bool:
        self.eof = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.writes.append("pause")

    def resume_writing(self) -> None:
        self.writes.append("resume")


class Rig:
    """Two machines without nodes, and a connection from `a` to `b` once `connect` has returned."""

    def __init__(self) -> None:
        self.deployment = Deployment(1, ())
        self.here: SimLoop = self.deployment.client("a")
        self.there: SimLoop = self.deployment.client("b")
        self.a_ip, self.b_ip = "10.0.1.1", "10.0.1.2"
        self.accepted: list[End] = []

    def do(self, loop: SimLoop, work: Coroutine[Any, Any, Any], most: float = 300.0) -> Any:
        task = self.deployment.spawn(loop, work)
        self.deployment.run_until_done(task, most)
        return task.result()

    def listen(self) -> None:
        def accept() -> End:
            self.accepted.append(End())
            return self.accepted[-1]

        self.do(self.there, self.there.create_server(accept, self.b_ip, PORT))

    def dial(self, most: float = 300.0) -> End:
        _, end = self.do(self.here, self.here.create_connection(End, self.b_ip, PORT), most)
        return end

    def connect(self) -> tuple[End, End]:
        self.listen()
        here = self.dial()
        self.deployment.run(0.1)
        return here, self.accepted[-1]

    def links(self) -> tuple[Any, Any]:
        return self.deployment.network.link(self.a_ip, self.b_ip), self.deployment.network.link(self.b_ip, self.a_ip)

    def kill_there(self, kill: Callable[[Any], None]) -> None:
        kill(self.deployment.clients["b"])


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_bytes_come_in_order_whatever_is_lost_on_the_way(rig: Rig) -> None:
    here, there = rig.connect()
    rig.links()[0].loss = 0.3
    sent = b""
    for number in range(200):
        sent += b"%d," % number
        here.transport.write(b"%d," % number)
        rig.deployment.run(0.001)
    rig.deployment.run(60.0)
    assert there.data == sent


def test_what_a_cut_holds_up_comes_after_it(rig: Rig) -> None:
    here, there = rig.connect()
    rig.links()[0].cut()
    here.transport.write(b"held")
    there.transport.write(b"the other way")
    rig.deployment.run(5.0)
    assert (there.data, here.data) == (b"", b"the other way")
    rig.links()[0].heal()
    here.transport.write(b" and later")
    rig.deployment.run(10.0)
    assert there.data == b"held and later"


def test_a_writer_waits_for_a_reader_who_does_not_read(rig: Rig) -> None:
    here, there = rig.connect()
    there.transport.pause_reading()
    for _ in range(40):
        here.transport.write(b"x" * 16_384)
    rig.deployment.run(1.0)
    assert here.writes == ["pause"] and there.data == b""
    assert here.transport.get_write_buffer_size() > 64 << 10
    there.transport.resume_reading()
    rig.deployment.run(1.0)
    assert here.writes == ["pause", "resume"] and len(there.data) == 40 * 16_384
    assert here.transport.get_write_buffer_size() == 0


def test_a_close_sends_what_is_queued_and_an_abort_does_not_wait(rig: Rig) -> None:
    here, there = rig.connect()
    here.transport.write(b"last words")
    here.transport.close()
    rig.deployment.run(1.0)
    assert there.data == b"last words" and there.eof and there.lost == [None] and here.lost == [None]
    second = rig.dial()
    rig.deployment.run(0.1)
    second.transport.abort()
    rig.deployment.run(1.0)
    assert isinstance(rig.accepted[-1].lost[0], ConnectionResetError)


def test_nobody_listens_or_nobody_is_there(rig: Rig) -> None:
    with pytest.raises(ConnectionRefusedError):
        rig.dial()
    began = rig.deployment.scheduler.now
    rig.deployment.clients["b"].lose_power()
    with pytest.raises(TimeoutError):
        rig.dial()
    assert rig.deployment.scheduler.now - began > 100


def test_a_killed_process_is_heard_of_and_a_machine_without_power_is_not(rig: Rig) -> None:
    here, _ = rig.connect()
    rig.deployment.clients["b"].kill()
    rig.deployment.run(1.0)
    assert here.lost == [None]
    rig.deployment.clients["b"].begin()
    rig.there = rig.deployment.clients["b"].loop  # type: ignore[assignment]
    here, _ = rig.connect()
    machine = rig.deployment.clients["b"]
    machine.lose_power()
    here.transport.write(b"into the void")
    rig.deployment.run(30.0)
    assert here.lost == []
    machine.begin()
    here.transport.write(b"again")
    rig.deployment.run(1.0)
    assert isinstance(here.lost[0], ConnectionResetError), "who is back knows no such connection"


def test_a_process_that_stands_still_takes_nothing_until_it_goes_on(rig: Rig) -> None:
    here, there = rig.connect()
    rig.deployment.clients["b"].pause()
    here.transport.write(b"wait")
    second = rig.dial()
    rig.deployment.run(5.0)
    assert there.data == b"" and len(rig.accepted) == 1, "its kernel has accepted"
    rig.deployment.clients["b"].resume()
    rig.deployment.run(0.1)
    assert there.data == b"wait" and len(rig.accepted) == 2 and second.lost == []


def test_a_forgotten_connection_leads_nowhere_and_neither_end_notices(rig: Rig) -> None:
    here, there = rig.connect()
    here.transport.forget()
    here.transport.write(b"gone")
    there.transport.write(b"gone as well")
    rig.deployment.run(60.0)
    assert (here.data, there.data, here.lost, there.lost) == (b"", b"", [], [])


def test_a_narrow_link_takes_its_time(rig: Rig) -> None:
    here, there = rig.connect()
    rig.links()[0].rate = 10_000.0
    here.transport.write(b"x" * 50_000)
    rig.deployment.run(4.0)
    assert there.data == b""
    rig.deployment.run(1.5)
    assert len(there.data) == 50_000


def test_a_congested_link_makes_writers_wait_and_lets_them_go_on(rig: Rig) -> None:
    here, there = rig.connect()
    here.transport.set_write_buffer_limits(high=4_000)
    link = rig.links()[0]
    link.window, link.delay = 1_448, 0.01
    assert not link.is_calm
    here.transport.write(b"x" * 14_480)
    assert here.writes == ["pause"], "its buffer is full"
    rig.deployment.run(0.055)
    assert 4 * 1_448 <= len(there.data) <= 6 * 1_448, "a segment, or a part of one, at a time"
    link.calm()
    rig.deployment.run(0.1)
    assert len(there.data) == 14_480 and here.writes == ["pause", "resume"] and link.is_calm


def test_a_write_comes_in_pieces_now_and_then(rig: Rig) -> None:
    here, there = rig.connect()
    for number in range(400):
        here.transport.write(b"%03d" % number)
        rig.deployment.run(0.01)
    assert there.data == b"".join(b"%03d" % number for number in range(400))
    assert 405 < there.pieces < 460, "both pieces of a write may come at once"


def test_a_segment_is_cut_anywhere(rig: Rig) -> None:
    found = {rig.deployment.network.split(5) for _ in range(1_000)}
    assert found == {0, 1, 2, 3, 4}


def test_who_is_reset_while_it_connects_notices_the_connection_and_its_end(rig: Rig) -> None:
    """Its SYN comes, the answer is held up, the other end is aborted, and both come together."""
    rig.listen()
    rig.links()[1].cut()
    dialling = rig.deployment.spawn(rig.here, rig.here.create_connection(End, rig.b_ip, PORT))
    rig.deployment.run(1.0)
    rig.accepted[-1].transport.abort()
    rig.deployment.run(1.0)
    rig.links()[1].heal()
    rig.deployment.run_until_done(dialling, 30.0)
    _, end = dialling.result()
    rig.deployment.run(1.0)
    assert end.transport is not None and end.transport.is_closing()
    assert len(end.lost) == 1 and isinstance(end.lost[0], ConnectionResetError)


def test_a_process_without_descriptors_connects_nowhere_and_accepts_later(rig: Rig) -> None:
    rig.connect()
    rig.deployment.clients["a"].descriptors = None
    with pytest.raises(OSError, match="Too many open files"):
        rig.dial()
    rig.deployment.clients["a"].descriptors = FEW
    rig.deployment.clients["b"].descriptors = None
    here = rig.dial()
    here.transport.write(b"early")
    rig.deployment.run(3.0)
    assert len(rig.accepted) == 1
    rig.deployment.clients["b"].descriptors = FEW
    rig.deployment.run(2.0)
    assert rig.accepted[1].data == b"early"
