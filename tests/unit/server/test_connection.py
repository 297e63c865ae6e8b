"""The I/O half of a connection: slow consumers, stalls, back-pressure, stale connections, closing."""

from __future__ import annotations

from testkit.server_rig import Peer, ServerRig

MIB = 1024 * 1024


def test_slow_consumer_is_closed_and_counted_while_others_live() -> None:
    rig = ServerRig(max_pending=MIB)
    slow, fast, publisher = rig.client(b"SUB foo 1"), rig.client(b"SUB foo 1"), rig.client()
    slow.transport.jammed = True
    payload = b"x" * 65536
    for _ in range(40):
        publisher.send(b"PUB foo %d\r\n%b\r\n" % (len(payload), payload))
        rig.time.advance(0.01)
    assert slow.closed == "Slow Consumer (Pending Bytes)"
    assert slow.transport.aborted
    assert rig.server.state.slow_consumers == 1
    assert fast.connection.out_msgs == 40
    assert not fast.closed
    assert not publisher.closed
    assert slow.connection.out == [], "its memory is given back at once"


def test_bound_holds_within_one_turn() -> None:
    rig = ServerRig(max_pending=MIB)
    slow = rig.client(b"SUB foo 1")
    payload = b"x" * 1000
    for _ in range(2000):
        rig.router.publish(b"foo", payload)
        assert sum(map(len, slow.connection.out)) < MIB + 2000
    assert slow.closed == "Slow Consumer (Pending Bytes)"


def test_bound_holds_for_a_client_that_floods_pings_and_reads_nothing() -> None:
    rig = ServerRig(max_pending=10_000)
    peer = rig.client()
    peer.transport.jammed = True
    peer.transport.high = 100
    for _ in range(100):
        peer.send(*[b"PING"] * 100)
        rig.time.advance(0)
    assert peer.closed == "Slow Consumer (Pending Bytes)"


def test_write_deadline() -> None:
    rig = ServerRig(write_deadline=10.0)
    slow, publisher = rig.client(b"SUB foo 1"), rig.client()
    slow.transport.jammed = True
    publisher.send(b"PUB foo 100000\r\n" + b"x" * 100_000)
    rig.time.advance(9.9)
    assert not slow.closed
    rig.time.advance(0.2)
    assert slow.closed == "Slow Consumer (Write Deadline)"
    assert rig.server.state.slow_consumers == 1


def test_write_timeout_retry_keeps_a_client_that_takes_nothing() -> None:
    rig = ServerRig(write_deadline=2.0, write_timeout="retry", max_pending=MIB)
    slow = rig.client(b"SUB foo 1")
    slow.transport.jammed = True
    rig.router.publish(b"foo", b"x" * 100_000)
    rig.time.advance(5)
    assert (slow.closed, rig.server.state.slow_consumers) == ("", 2)
    slow.transport.drain()
    rig.time.advance(5)
    assert (slow.closed, rig.server.state.slow_consumers) == ("", 2)
    slow.transport.jammed = True
    for _ in range(20):
        rig.router.publish(b"foo", b"x" * 100_000)
        rig.time.advance(0.01)
    assert slow.closed == "Slow Consumer (Pending Bytes)"


def test_a_flush_in_time_clears_the_deadline() -> None:
    rig = ServerRig(write_deadline=10.0)
    slow, publisher = rig.client(b"SUB foo 1"), rig.client()
    slow.transport.jammed = True
    publisher.send(b"PUB foo 100000\r\n" + b"x" * 100_000)
    rig.time.advance(9.0)
    publisher.send(b"PUB foo 1", b"y")
    slow.transport.written.clear()
    rig.time.advance(0.5)
    assert slow.transport.written == b"", "nothing is written behind a flush that is still on its way"
    slow.transport.drain()
    assert slow.transport.written == b"PING\r\nMSG foo 1 1\r\ny\r\n"
    assert slow.connection.pending == 0
    rig.time.advance(20.0)
    assert not slow.closed


def test_publisher_is_stalled_at_three_quarters() -> None:
    rig = ServerRig(max_pending=100_000)
    slow, publisher = rig.client(b"SUB foo 1"), rig.client()
    slow.transport.jammed = True
    publisher.send(b"PUB foo 80000\r\n" + b"x" * 80_000)
    assert not publisher.transport.reading
    assert publisher.connection.stalls == rig.server.state.stalled_clients == 1
    rig.time.advance(0.02)
    assert publisher.transport.reading
    assert not slow.closed


def test_no_publisher_is_stalled_when_configured_so() -> None:
    rig = ServerRig(max_pending=MIB, no_fast_producer_stall=True)
    slow, publisher = rig.client(b"SUB foo 1"), rig.client()
    slow.transport.jammed = True
    payload = b"x" * 65536
    for _ in range(14):
        publisher.send(b"PUB foo %d\r\n%b\r\n" % (len(payload), payload))
        assert publisher.transport.reading
    assert (publisher.connection.stalls, slow.closed) == (0, "")


def test_back_pressure_from_several_holders() -> None:
    peer = ServerRig().client()
    peer.connection.pause_reading("a")
    peer.connection.pause_reading("b")
    peer.connection.resume_reading("a")
    assert not peer.transport.reading
    peer.connection.resume_reading("stranger")
    peer.connection.resume_reading("b")
    assert peer.transport.reading


def test_stale_connection() -> None:
    rig = ServerRig(ping_interval=10.0, ping_max=2)
    peer = rig.client()
    rig.time.advance(2.5)
    assert peer.read() == b"PING\r\n", "the first one comes early, to measure the round trip"
    rig.time.advance(10.0)
    assert peer.read() == b"PING\r\n"
    rig.time.advance(10.0)
    assert peer.read() == b"-ERR 'Stale Connection'\r\n"
    assert peer.closed == "Stale Connection"
    assert rig.server.state.stale_connections == 1


def test_who_is_sending_is_not_pinged_before_it_pauses(rig: ServerRig) -> None:
    """nats.c publishes 100,000 messages and closes: a PING that finds the connection gone would lose the rest."""
    peer = rig.client()
    for _ in range(60):
        peer.send(b"PUB foo 1", b"x")
        rig.time.advance(0.05)
    assert peer.read() == b""
    rig.time.advance(0.35)
    assert peer.read() == b"PING\r\n"


def test_who_never_pauses_is_pinged_in_the_end(rig: ServerRig) -> None:
    peer = rig.client()
    got = b""
    for _ in range(260):
        peer.send(b"PUB foo 1", b"x")
        rig.time.advance(0.05)
        got += peer.read()
    assert got == b"PING\r\n"


def test_active_connection_is_not_pinged() -> None:
    rig = ServerRig(ping_interval=10.0)
    peer = rig.client()
    rig.time.advance(2.5)
    peer.read()
    rig.time.advance(0.25)
    peer.send(b"PONG")
    assert 0.2 < peer.connection.rtt < 0.8
    for _ in range(20):
        rig.time.advance(5.0)
        peer.send(b"PUB foo 0", b"")
    assert peer.read() == b""
    rig.time.advance(21.0)
    assert b"PING\r\n" in peer.read()


def test_close_writes_what_is_queued_then_lingers(rig: ServerRig) -> None:
    peer = rig.client(b"SUB foo 1")
    peer.send(b"PUB foo 1", b"x", b"NONSENSE")
    assert peer.read() == b"MSG foo 1 1\r\nx\r\n-ERR 'Unknown Protocol Operation'\r\n"
    assert peer.closed == "Protocol Violation"
    assert peer.transport.eof
    peer.send(b"PUB foo 1", b"ignored")
    rig.time.advance(1.1)
    assert peer.transport.aborted
    peer.connection.connection_lost(None)
    assert peer.closed == "Protocol Violation", "the first reason stays"
    assert not rig.server.sockets


def test_lost_connection_leaves_nothing_behind(rig: ServerRig) -> None:
    peer = rig.client(b"SUB foo 1", b"SUB bar q 2")
    assert rig.router.index.count == 2
    peer.connection.connection_lost(None)
    assert rig.router.index.count == 0
    assert rig.router.publish(b"foo") == 0
    rig.time.advance(1000.0)
    assert peer.transport.written == b""


def test_closing_waits_for_output_that_is_still_on_its_way() -> None:
    rig = ServerRig(write_deadline=3.0)
    leaving, stuck = rig.client(), rig.client()
    for peer in (leaving, stuck):
        peer.transport.jammed = True
        rig.router.publish(b"foo", b"x")
        peer.send(b"SUB foo 1", b"PUB foo 90000\r\n" + b"x" * 90_000)
        rig.time.advance(0)
        peer.connection.close("Server Shutdown")
    rig.time.advance(1.5)
    assert not leaving.transport.aborted
    leaving.transport.buffered = 0
    rig.time.advance(1.0)
    assert leaving.transport.aborted
    assert not stuck.transport.aborted
    rig.time.advance(3.0)
    assert stuck.transport.aborted


def test_a_connection_that_comes_while_the_server_stops_is_ended_at_once(rig: ServerRig) -> None:
    """It was accepted in the turn in which the port was closed; the stop waited two seconds for it."""
    rig.server.state.stopping = True
    late = Peer(rig)
    assert late.transport.aborted
    assert late.info == b""
    assert not rig.server.clients
