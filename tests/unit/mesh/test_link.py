"""Output lanes, limits and keepalive of one connection (mesh/link.py), with a fake transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jetcluster.mesh.frames import FrameReader, Kind, decode_sub, encode_msg, encode_ping, encode_sub
from jetcluster.mesh.link import (
    FULL_LANE_BYTES,
    FULL_READ_BYTES,
    GREETING_FRAMES,
    HIGH_WATER_BYTES,
    SLICE_BYTES,
    STRANGER_BYTES,
    WRITE_SECONDS,
    TcpLink,
)  # fmt: skip
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.protocol.connection_states import CLOSED, JOINED, ConnectionEvent
from jetcluster.raft.config import RaftConfig
from testkit.raft_frames import encode_raft
from testkit.twins.time import ManualTime
from tests.unit.cluster.mesh_support import FakeSwitchboard, admit, receive
from tests.unit.mesh.link_rig import FakeTransport, up_link, up_mesh


def frames_of(transport: FakeTransport) -> list[tuple[int, bytes]]:
    reader = FrameReader()
    spans = reader.feed(b"".join(transport.written))
    assert reader.error is None
    return [(kind, reader.buffer[start:end]) for kind, start, end in spans]


async def test_what_is_over_stays_over() -> None:
    link, _, _ = await up_link()
    assert link.up and link.state is JOINED
    link.close("enough")
    assert link.closed and not link.up
    with pytest.raises(AssertionError, match="CONNECT cannot happen to a connection that is CLOSED"):
        link.advance(ConnectionEvent.CONNECT)
    link.connection_lost(None)
    assert link.state is CLOSED and link.close_reason == "enough"


@pytest.mark.parametrize("how", ["close", "flush"])
async def test_a_socket_that_has_failed_holds_up_no_end(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As uvloop says it, before it calls `connection_lost`."""
    link, transport, _ = await up_link()

    def write(data: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    monkeypatch.setattr(transport, "write", write)
    link.send_urgent(encode_raft(1, b"r"))
    if how == "flush":
        link.flush()
    link.close("enough")
    assert link.state is CLOSED and link.close_reason == "enough" and transport.closed


def msg(payload: bytes) -> bytes:
    return encode_msg("$G", b"s", b"", [], b"", payload)


async def test_one_write_per_loop_turn_raft_first() -> None:
    link, transport, _ = await up_link()
    link.send(msg(b"1"))
    link.send_urgent(encode_raft(1, b"r"))
    link.send(msg(b"2"))
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [encode_raft(1, b"r") + msg(b"1") + msg(b"2")]


async def test_raft_overtakes_messages_while_the_connection_is_full() -> None:
    link, transport, _ = await up_link()
    big = msg(b"x" * 100_000)
    for _ in range(100):
        link.send(big)
    await asyncio.sleep(0)
    assert link.congested
    assert HIGH_WATER_BYTES < transport.buffered <= HIGH_WATER_BYTES + SLICE_BYTES + len(big)
    link.send_urgent(encode_raft(5, b"heartbeat"))
    await asyncio.sleep(0)
    assert transport.written[-1] == encode_raft(5, b"heartbeat")
    for _ in range(100):
        transport.drain()
    kinds = [kind for kind, _ in frames_of(transport)]
    assert kinds.count(Kind.MSG) == 100
    assert kinds.index(Kind.RAFT) < 20
    assert link.pending == 0


async def test_an_ack_does_not_wait_until_no_raft_frame_does() -> None:
    """A replica that lags: the connection takes much, and never so much that it asks for more."""
    link, transport, _ = await up_link()
    append = encode_raft(1, b"x" * 100_000)
    for _ in range(4):
        link.send_urgent(append)
    await asyncio.sleep(0)
    assert link.congested
    link.send(msg(b"ack"))
    link.send(msg(b"another"))
    link.send_urgent(append)
    await asyncio.sleep(0)
    assert transport.written[-1] == append + msg(b"ack") + msg(b"another"), "not before the entries that it follows"


async def test_the_share_of_messages_is_that_of_raft_frames_while_the_connection_is_full() -> None:
    link, transport, _ = await up_link(max_pending=1 << 30)
    small, big, huge = msg(b"x" * 1000), msg(b"x" * 50_000), msg(b"x" * 2 * SLICE_BYTES)
    for frame in [huge] * 4 + [small, big, huge] * 20:
        link.send(frame)
    await asyncio.sleep(0)
    assert link.congested
    passed = len(b"".join(transport.written))
    for size in (10, 20_000, 60_000, 200_000, 10) * 10:
        urgent = encode_raft(1, b"x" * size)
        before = len(transport.written)
        link.send_urgent(urgent)
        await asyncio.sleep(0)
        assert len(transport.written) == before + 1 and transport.written[-1].startswith(urgent)
    raft = sum(len(body) for kind, body in frames_of(transport) if kind == Kind.RAFT)
    shared = len(b"".join(transport.written)) - passed - raft
    assert raft / 4 < shared <= raft + len(huge)
    while link.pending:
        transport.drain()
    bodies = [len(body) for kind, body in frames_of(transport) if kind == Kind.MSG]
    assert len(bodies) == 64 and bodies[4:] == bodies[4:7] * 20, "in their order"


async def test_the_ordered_lane_keeps_its_order_through_congestion() -> None:
    link, transport, _ = await up_link()
    for number in range(300):
        link.send(msg(b"%06d" % number + b"x" * 10_000))
        if number % 7 == 0:
            await asyncio.sleep(0)
        if number % 50 == 0:
            transport.drain()
    await asyncio.sleep(0)
    for _ in range(20):
        transport.drain()
    bodies = [body for _, body in frames_of(transport)]
    positions = [body.index(b"x" * 10_000) - 6 for body in bodies]
    numbers = [int(body[p : p + 6]) for body, p in zip(bodies, positions, strict=True)]
    assert numbers == list(range(300))


async def test_a_long_greeting_goes_out_in_portions_and_before_what_is_sent_later() -> None:
    link, transport, _ = await up_link()
    made = 0

    def greeting() -> Iterator[bytes]:
        nonlocal made
        for number in range(100_000):
            made += 1
            yield encode_sub("$G", b"%d" % number, None, 1)

    link.greet(greeting())
    longest, turns = made, 0
    link.send(msg(b"later 0"))
    while made < 100_000 or link.pending:
        before = made
        link.send_urgent(encode_raft(1, b"beat"))
        await asyncio.sleep(0)
        longest, turns = max(longest, made - before), turns + 1
        assert transport.written[-1].startswith(encode_raft(1, b"beat")), "Raft waits for nobody's subscriptions"
        if turns % 3 == 0:
            transport.drain()
        if turns == 50:
            link.send(msg(b"later 1"))
        if not made < 100_000:
            transport.drain()
    assert longest <= GREETING_FRAMES and turns >= 100_000 // GREETING_FRAMES
    link.send(msg(b"later 2"))
    await asyncio.sleep(0)
    bodies = [body for kind, body in frames_of(transport) if kind != Kind.RAFT]
    assert [decode_sub(body)[1] for body in bodies[:100_000]] == [b"%d" % number for number in range(100_000)]
    assert [body[-7:] for body in bodies[100_000:]] == [b"later 0", b"later 1", b"later 2"]


async def test_a_greeting_is_made_as_the_connection_takes_it() -> None:
    link, transport, _ = await up_link(max_pending=1_000_000)
    frame = encode_sub("$G", b"x" * 200, None, 1)
    endless = iter(lambda: frame, b"")
    link.greet(endless)
    for _ in range(100):
        await asyncio.sleep(0)
    assert link.congested and not transport.closed
    assert link.pending <= HIGH_WATER_BYTES + SLICE_BYTES + 2 * GREETING_FRAMES * len(frame), (
        "a peer that reads slowly is no slow peer yet"
    )
    link.close("over")
    written = len(transport.written)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(transport.written) == written


async def test_a_long_greeting_is_taken_in_portions_and_before_what_comes_later() -> None:
    mesh, link, transport, _ = await up_mesh()
    board = FakeSwitchboard()
    mesh.attach(board, lambda _: None)
    subs = b"".join([encode_sub("$G", b"%d" % number, None, 1) for number in range(5000)])
    link.data_received(subs + msg(b"later"))
    assert len(board.log) == GREETING_FRAMES and not transport.reading
    turns = 0
    while not transport.reading:
        before = len(board.log)
        await asyncio.sleep(0)
        assert len(board.log) - before <= GREETING_FRAMES
        turns += 1
    assert turns >= 5000 // GREETING_FRAMES
    assert [entry[2] for entry in board.log] == [b"%d" % number for number in range(5000)]
    assert [message[-1] for message in board.messages] == [b"later"]
    link.data_received(msg(b"m") * 5000)  # these are not: they cost what clients have sent
    assert len(board.messages) == 5001


async def test_a_message_in_the_middle_of_a_greeting_makes_no_single_portion_of_it() -> None:
    mesh, link, transport, _ = await up_mesh()
    board = FakeSwitchboard()
    mesh.attach(board, lambda _: None)
    subs = [encode_sub("$G", b"%d" % number, None, 1) for number in range(5000)]
    subs.insert(GREETING_FRAMES, msg(b"between"))
    link.data_received(b"".join(subs))
    assert len(board.log) == GREETING_FRAMES and not board.messages
    while not transport.reading:
        await asyncio.sleep(0)
    assert len(board.log) == 5000
    assert [message[-1] for message in board.messages] == [b"between"]


async def test_what_comes_behind_a_greeting_that_waits_keeps_its_place_and_ends_with_the_link() -> None:
    mesh, link, _, _ = await up_mesh()
    board = FakeSwitchboard()
    mesh.attach(board, lambda _: None)
    subs = b"".join([encode_sub("$G", b"%d" % number, None, 1) for number in range(5000)])
    link.data_received(subs)
    link.data_received(encode_sub("$G", b"0", None, 0))  # though reading is paused
    assert [entry[2] for entry in board.log] == [b"%d" % number for number in [*range(5000), 0]]
    assert ("$G", b"0", None) not in board.remote["BBBBBBBB"]
    link.data_received(subs)
    link.close("over", abort=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert board.log[-1] == ("drop", "BBBBBBBB") and len(board.log) == 5001 + GREETING_FRAMES + 1


async def test_messages_are_dropped_at_half_the_limit_and_raft_still_passes() -> None:
    mesh, link, transport, _ = await up_mesh(max_pending=4_000_000)
    for _ in range(100):
        link.send_msg("$G", b"s", b"", [], b"", b"x" * 100_000)
        await asyncio.sleep(0)
    assert link.pending <= 4_000_000 // 2 + 100_100
    assert mesh.counters.dropped_msgs == 100 - link.stats.out_msgs > 0
    assert link.send_urgent(encode_raft(1, b"x"))
    for _ in range(40):
        await asyncio.sleep(0)
        transport.drain()
    link.send_msg("$G", b"s", b"", [], b"", b"again")
    await asyncio.sleep(0)
    assert transport.written[-1].endswith(b"again")


async def test_beyond_the_limit_the_link_is_closed_later_in_the_turn() -> None:
    mesh, link, transport, _ = await up_mesh(max_pending=1_000_000)
    down: list[str] = []
    mesh.on_peers(lambda _: None, lambda peer: down.append(peer.peer_id))
    sent = [link.send_urgent(encode_raft(1, b"x" * 300_000)) for _ in range(6)]
    assert sent == [True, True, True, False, False, False]
    assert down == []  # the caller may be in the middle of something
    await asyncio.sleep(0)
    assert down == ["BBBBBBBB"]
    assert transport.closed == "abort"
    assert mesh.counters.slow == 1
    assert link.close_reason.startswith("slow peer")


async def test_what_the_transport_sent_meanwhile_is_not_held_against_the_link() -> None:
    mesh, link, transport, _ = await up_mesh(max_pending=1_000_000)
    for _ in range(20):
        assert link.send_urgent(encode_raft(1, b"x" * 300_000))
        await asyncio.sleep(0)
        transport.drain()
    assert mesh.counters.slow == 0


async def keeps_up(mesh: NodeMesh, link: TcpLink, time: ManualTime, seconds: float) -> None:
    for _ in range(int(seconds / 0.5)):
        link.data_received(encode_ping(Kind.PONG, 1))
        tick(mesh, time, 0.5)
        await asyncio.sleep(0)


async def test_who_takes_nothing_is_closed_though_it_speaks() -> None:
    mesh, link, transport, time = await up_mesh()
    for _ in range(3 * int(WRITE_SECONDS)):
        await keeps_up(mesh, link, time, 1)
        transport.drain()
    assert not link.closed, "nothing waits for long"
    link.send(msg(b"x"))
    await keeps_up(mesh, link, time, WRITE_SECONDS - 1)
    assert not link.closed
    await keeps_up(mesh, link, time, 2)
    assert link.closed
    assert link.close_reason.startswith("slow peer: nothing taken for 10 s")
    assert mesh.counters.slow == 1


async def test_who_takes_little_is_not_closed() -> None:
    mesh, link, transport, time = await up_mesh()
    for _ in range(40):
        link.send(msg(b"x" * 64 * 1024))
    await asyncio.sleep(0)
    for _ in range(10):
        await keeps_up(mesh, link, time, WRITE_SECONDS - 1)
        transport.buffered -= 1
    assert not link.closed
    link.excuse(100.0)
    time.advance(100.0)
    await keeps_up(mesh, link, time, WRITE_SECONDS - 1)
    assert not link.closed, "it was this process that stood still"


async def test_nobody_waits_for_a_stranger_and_little_waits_for_it() -> None:
    mesh, link, _, _ = await up_mesh()
    admit(mesh, is_member=lambda peer: False)
    for _ in range(200):
        link.send_msg("$G", b"s", b"", [], b"", b"x" * 100_000)
    assert not link.valve.closed
    assert STRANGER_BYTES // 2 - 101_000 <= link.pending <= STRANGER_BYTES // 2 + 101_000
    admit(mesh, is_member=lambda peer: True)
    for _ in range(200):
        link.send_msg("$G", b"s", b"", [], b"", b"x" * 100_000)
    assert link.valve.closed
    assert link.pending > 20_000_000, "it became a member meanwhile"
    assert not link._condemned


async def test_what_is_not_messages_closes_a_strangers_link_at_its_bound() -> None:
    for known in (False, True):
        mesh, link, _, _ = await up_mesh()
        admit(mesh, is_member=lambda peer, known=known: known)
        for _ in range(100):
            link.send(encode_raft(1, b"x" * 100_000))
        await asyncio.sleep(0)
        assert link.closed is not known


async def test_keepalive_pings_an_idle_link_and_closes_a_silent_one() -> None:
    mesh, link, transport, time = await up_mesh()

    async def pass_time(seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            time.advance(0.25)
            mesh._tick()
            await asyncio.sleep(0)

    await pass_time(0.25)
    ((kind, stamp),) = frames_of(transport)
    assert kind == Kind.PING
    time.advance(0.002)
    link.data_received(encode_ping(Kind.PONG, int.from_bytes(stamp, "big")))
    assert link.stats.rtt == pytest.approx(0.002, abs=1e-4)
    transport.written.clear()
    await pass_time(3.25)
    assert [kind for kind, _ in frames_of(transport)] == [Kind.PING] * 3
    assert not link.closed
    await pass_time(0.5)
    assert link.closed
    assert "stale" in link.close_reason
    assert mesh.counters.stale == 1
    mesh._ticker.cancel()  # type: ignore[union-attr]


async def test_a_busy_link_is_pinged_for_its_round_trip_time_only() -> None:
    mesh, link, transport, time = await up_mesh()
    for _ in range(44):
        time.advance(0.25)
        link.data_received(encode_raft(1, b"heartbeat"))
        mesh._tick()
        await asyncio.sleep(0)
    assert [kind for kind, _ in frames_of(transport)] == [Kind.PING] * 3
    mesh._ticker.cancel()  # type: ignore[union-attr]


async def test_a_process_that_stood_still_does_not_blame_its_peers() -> None:
    mesh, link, _, time = await up_mesh()
    mesh._last_tick = time.monotonic()
    time.advance(0.25)
    mesh._tick()
    time.advance(30.0)
    mesh._tick()
    assert not link.closed
    for _ in range(16):
        time.advance(0.25)
        mesh._tick()
    assert link.closed
    mesh._ticker.cancel()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff\xff\xff\x09",
        b"\x00\x00\x00\x01\x63",
        b"\x00\x00\x00\x03\x08\x00\x00",
        b"\x00\x00\x00\x02\x01\x00",
        b"\x00\x00\x00\x02\x07\x00",
    ],
)
async def test_a_malformed_frame_closes_the_link_after_the_good_ones(bad: bytes) -> None:
    mesh, link, transport, _ = await up_mesh()
    seen: list[bytes] = []
    down: list[str] = []
    receive(mesh, lambda peer, gid, frame: seen.append(frame))
    mesh.on_peers(lambda _: None, lambda peer: down.append(peer.peer_id))
    link.data_received(encode_raft(1, b"good") + bad)
    link.data_received(encode_raft(1, b"after the end"))
    assert seen == [b"good"]
    assert down == ["BBBBBBBB"]
    assert transport.closed
    assert mesh.counters.malformed == 1
    assert "malformed" in link.close_reason


async def test_a_part_of_a_frame_is_a_sign_of_life() -> None:
    mesh, link, _, _ = await up_mesh()
    heard: list[str] = []
    seen: list[bytes] = []
    receive(mesh, lambda peer, gid, frame: seen.append(frame), heard=heard.append)
    data = encode_raft(1, b"first") + encode_raft(1, b"x" * 100)
    for at in range(0, len(data), 20):
        link.data_received(data[at : at + 20])
    assert seen == [b"first", b"x" * 100]
    assert heard == ["BBBBBBBB"] * (-(-len(data) // 20) - len(seen)), "with each read that ends no frame"


async def test_close_sends_what_is_queued_and_abort_does_not() -> None:
    link, transport, _ = await up_link()
    link.send(msg(b"last words"))
    link.close("done")
    assert transport.written == [msg(b"last words")]
    assert transport.closed == "close"
    link.send(msg(b"too late"))
    assert not link.send_urgent(b"")
    await asyncio.sleep(0)
    assert len(transport.written) == 1


async def test_publishers_wait_while_much_is_queued() -> None:
    link, transport, _ = await up_link()
    big = msg(b"x" * 100_000)
    while not link.valve.closed:
        link.send(big)
    queued = link._ordered_bytes
    assert FULL_LANE_BYTES < queued <= FULL_LANE_BYTES + len(big)
    await asyncio.sleep(0)
    for _ in range(20):
        transport.drain()
    assert not link.valve.closed
    link.valve.close()
    link.close("cut", abort=True)
    assert not link.valve.closed, "nobody waits for a link that is gone"


async def test_a_link_with_much_to_read_lets_the_loop_get_to_others() -> None:
    link, transport, _ = await up_link()
    link.data_received(msg(b"x" * 1000))
    assert transport.reading
    link.data_received(msg(b"x" * 1000) * (FULL_READ_BYTES // 1000))
    assert not transport.reading
    await asyncio.sleep(0)
    assert transport.reading
    link.data_received(msg(b"x" * 1000) * (FULL_READ_BYTES // 1000))
    link.close("cut", abort=True)
    await asyncio.sleep(0)
    assert not transport.reading, "of a connection that is closed nothing more is wanted"


async def test_no_publisher_waits_for_a_node_that_is_silent() -> None:
    """Publishers stop waiting as soon as Raft suspects the node: another one may lead by then, and they are to find
    it."""
    mesh, link, _, time = await up_mesh(jetstream=True)
    heard: list[bool] = []
    mesh.attach(FakeSwitchboard(), lambda its: None, lambda its: heard.append(its.silent))
    for _ in range(20):
        link.send(msg(b"x" * 64 * 1024))
    assert link.valve.closed
    tick(mesh, time, RaftConfig().suspect_after - 0.1)
    assert link.valve.closed
    tick(mesh, time, 0.2)
    assert heard == [True]
    for _ in range(20):
        link.send(msg(b"x" * 64 * 1024))
    assert not link.valve.closed
    assert not link.closed
    link.data_received(encode_ping(Kind.PONG, 1))
    assert heard == [True, False]
    link.send(msg(b"x"))
    assert link.valve.closed, "its lane is as full as before"
    tick(mesh, time, 0.2)
    assert heard == [True, False]


async def test_what_queues_for_a_silent_node_is_bounded() -> None:
    mesh, link, _, time = await up_mesh(jetstream=True, max_pending=4 << 20)
    tick(mesh, time, 1.0)
    for _ in range(100):
        link.send_msg("$G", b"s", b"", [], b"", b"x" * 100_000)
    assert link.pending <= (4 << 20) // 2 + 101_000
    assert mesh.counters.dropped_msgs > 50
    assert not link.closed


async def test_a_node_without_jetstream_is_not_heard_that_often() -> None:
    mesh, link, _, time = await up_mesh()
    for _ in range(20):
        link.send(msg(b"x" * 64 * 1024))
    tick(mesh, time, 3.0)
    assert link.valve.closed


def tick(mesh: NodeMesh, time: ManualTime, seconds: float) -> None:
    """The mesh looks at its links after that time."""
    time.advance(seconds)
    mesh._last_tick = time.monotonic()
    mesh._tick()
    assert mesh._ticker is not None
    mesh._ticker.cancel()
