"""The mesh's frame codec (mesh/frames.py)."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.mesh import frames as mesh_frames
from jetcluster.mesh.frames import (
    MAX_DELIVER_BYTES,
    MAX_FRAME_BYTES,
    MSGS_LENGTH_BYTES,
    FrameError,
    FrameReader,
    Kind,
    decode_answer,
    decode_backlog,
    decode_call,
    decode_deliver,
    decode_msg,
    decode_msgs,
    decode_notice,
    decode_ping,
    decode_sub,
    encode_backlog,
    encode_call,
    encode_deliver,
    encode_error,
    encode_msg,
    encode_msgs,
    encode_notice,
    encode_ping,
    encode_reply,
    encode_sub,
    frame,
    unpack_gid,
)
from testkit.raft_frames import encode_raft
from testkit.twins.memory import kept_bytes

names = st.text(min_size=1, max_size=20)
short = st.binary(max_size=40)
some = st.binary(min_size=1, max_size=40)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)

deliveries = st.lists(st.tuples(some, short, short, st.binary(max_size=300)), min_size=1, max_size=6)

frames = st.one_of(
    st.builds(encode_backlog, st.just(Kind.BACKLOG), names, some, u64, u64),
    st.builds(encode_deliver, names, some, st.lists(short, max_size=3), deliveries),
    st.builds(encode_msg, names, some, short, st.lists(short, max_size=4), short, st.binary(max_size=300)),
    st.builds(encode_raft, u32, short),
    st.builds(encode_sub, names, some, st.none() | short, u32),
    st.builds(encode_call, u32, st.just(b"method"), short),
    st.builds(encode_reply, u32, short),
    st.builds(encode_notice, st.just(b"kind"), short),
    st.builds(encode_ping, st.sampled_from([Kind.PING, Kind.PONG]), st.integers(0, 2**64 - 1)),
)


def read_all(reader: FrameReader, pieces: list[bytes]) -> list[tuple[int, bytes]]:
    found = []
    for piece in pieces:
        spans = reader.feed(piece)
        found += [(kind, reader.buffer[start:end]) for kind, start, end in spans]
        if reader.error is not None:
            break
    return found


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 100_000), max_size=30), st.binary(max_size=30))
def test_any_split_gives_the_same_frames(parts: list[bytes], cuts: list[int], tail: bytes) -> None:
    stream = b"".join(parts) + tail
    whole, split = FrameReader(400), FrameReader(400)
    expected = read_all(whole, [stream])
    assert read_all(split, pieces_of(stream, cuts)) == expected
    assert (split.error is None) == (whole.error is None)
    if all(len(part) <= 404 for part in parts):
        assert [bytes(part[5:]) for part in parts] == [body for _, body in expected[: len(parts)]]


@given(st.lists(frames, min_size=1, max_size=5))
def test_one_byte_at_a_time(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    found = read_all(FrameReader(), [stream[i : i + 1] for i in range(len(stream))])
    assert found == [(part[4], part[5:]) for part in parts]


@given(names, some, short, st.lists(short, max_size=5), short, st.binary(max_size=2000))
def test_msg_round_trip(
    account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
) -> None:
    encoded = encode_msg(account, subject, reply, queues, headers, payload)
    padded = b"???" + encoded + b"!!!"
    assert decode_msg(padded, 3 + 5, 3 + len(encoded)) == (account, subject, reply, queues, headers, payload)


@given(names, some, st.none() | short, u32)
def test_sub_round_trip(account: str, subject: bytes, queue: bytes | None, count: int) -> None:
    assert decode_sub(encode_sub(account, subject, queue, count)[5:]) == (account, subject, queue, count)


def test_the_other_frames_round_trip() -> None:
    raft = encode_raft(0xFFFFFFFF, b"entry")
    assert (*unpack_gid(raft, 5), raft[9:]) == (0xFFFFFFFF, b"entry")
    assert decode_call(encode_call(7, b"meta.propose", b"\x00body")[5:]) == (7, "meta.propose", b"\x00body")
    assert decode_answer(encode_reply(7, b"")[5:]) == (7, b"")
    assert decode_answer(encode_error(8, "größer")[5:]) == (8, "größer".encode())
    assert decode_notice(encode_notice(b"leader", b"x")[5:]) == ("leader", b"x")
    assert decode_ping(encode_ping(Kind.PING, 2**64 - 1)[5:]) == 2**64 - 1


def decode_anything(kind: int, buffer: bytes, start: int, end: int) -> None:
    decoders: dict[int, Any] = {
        Kind.SUB: decode_sub,
        Kind.CALL: decode_call,
        Kind.REPLY: decode_answer,
        Kind.ERROR: decode_answer,
        Kind.NOTICE: decode_notice,
        Kind.PING: decode_ping,
        Kind.PONG: decode_ping,
    }
    if kind == Kind.MSG:
        fields = decode_msg(buffer, start, end)
        total = sum(map(len, [fields[0].encode(), fields[1], fields[2], *fields[3], fields[4], fields[5]]))
        assert total <= end - start
    elif kind in decoders:
        decoders[kind](buffer[start:end])


@given(st.binary(max_size=300))
def test_garbage_is_an_error_or_frames_never_a_crash(garbage: bytes) -> None:
    reader = FrameReader()
    for kind, start, end in reader.feed(garbage):
        try:
            decode_anything(kind, reader.buffer, start, end)
        except FrameError:
            pass


@given(st.sampled_from(list(Kind)), st.binary(max_size=60))
def test_garbage_bodies(kind: Kind, body: bytes) -> None:
    encoded = b"zz" + frame(kind, body) + b"zz"
    try:
        decode_anything(kind, encoded, 7, len(encoded) - 2)
    except FrameError:
        pass


@given(frames, st.integers(0, 60), st.integers(1, 255))
def test_a_flipped_byte_in_a_length_never_reads_outside_the_frame(encoded: bytes, at: int, flip: int) -> None:
    position = 5 + at % max(1, len(encoded) - 5)
    if position >= len(encoded):
        return
    damaged = bytearray(encoded + b"SECRET" * 20)
    damaged[position] ^= flip
    try:
        decode_anything(damaged[4], bytes(damaged), 5, len(encoded))
    except FrameError:
        pass


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_bad_lengths_end_the_stream(length: int) -> None:
    good = encode_raft(1, b"ok")
    reader = FrameReader()
    assert len(reader.feed(good + struct.pack("!IB", length, Kind.RAFT))) == 1
    assert reader.error is not None


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 255])
def test_unknown_kinds_end_the_stream(kind: int) -> None:
    reader = FrameReader()
    assert reader.feed(struct.pack("!IB", 1, kind)) == []
    assert reader.error is not None


def test_a_frame_of_exactly_the_limit_passes() -> None:
    reader = FrameReader(max_frame=100)
    assert len(reader.feed(frame(Kind.NOTICE, b"x" * 99))) == 1
    assert reader.error is None
    reader.feed(frame(Kind.NOTICE, b"x" * 100))
    assert reader.error is not None


def test_a_large_frame_in_many_reads_is_joined_once() -> None:
    payload = bytes(range(256)) * 4096
    encoded = encode_raft(3, payload)
    reader = FrameReader()
    found = read_all(reader, [encoded[i : i + 1000] for i in range(0, len(encoded), 1000)])
    assert found == [(Kind.RAFT, encoded[5:])]


def test_account_caches_stay_bounded() -> None:
    def pass_many() -> None:
        for number in range(20 * mesh_frames.MAX_CACHED_ACCOUNTS):
            encoded = encode_msg(f"acc{number}", b"s", b"", [], b"", b"")
            decode_msg(encoded, 5, len(encoded))

    assert kept_bytes(pass_many) < 2 * mesh_frames.MAX_CACHED_ACCOUNTS * 300


def test_names_too_long_for_a_frame() -> None:
    with pytest.raises(struct.error):
        encode_msg("$G", b"s" * 65536, b"", [], b"", b"")
    with pytest.raises(ValueError):
        encode_sub("$G", b"s", b"q" * 0xFFFF, 1)


@given(names, some, st.lists(short, max_size=3), deliveries, st.data())
def test_deliveries_come_back_as_they_were_and_damage_is_refused(
    account: str, target: bytes, queues: list[bytes], messages: list[tuple[bytes, ...]], data: st.DataObject
) -> None:
    raw = encode_deliver(account, target, queues, messages)  # type: ignore[arg-type]
    assert decode_deliver(raw, 5, len(raw)) == (account, target, queues, messages)
    cut = data.draw(st.integers(5, len(raw) - 1))
    with pytest.raises(FrameError):
        decode_deliver(raw[:cut], 5, cut)
    with pytest.raises(FrameError):
        decode_deliver(raw + b"x", 5, len(raw) + 1)
    many = bytearray(raw)
    many[11:15] = b"\xff\xff\xff\xff"
    with pytest.raises(FrameError):
        decode_deliver(bytes(many), 5, len(many))


@given(names, some, u64, u64)
def test_backlogs(account: str, target: bytes, mark: int, waiting: int) -> None:
    raw = encode_backlog(Kind.BACKLOG, account, target, mark, waiting)
    assert decode_backlog(raw[5:]) == (account, target, mark, waiting)
    for size in (0, 10, 18 + len(account.encode())):
        with pytest.raises(FrameError):
            decode_backlog(raw[5 : 5 + size])


def test_the_bytes_of_messages_that_go_together() -> None:
    """Nodes of other versions read them: they never change."""
    messages = [(b"a.b", b"r", b"", b"xy"), (b"a.b", b"", b"", b"xy")]
    raw = encode_msgs("$G", messages)
    assert raw == bytes.fromhex(
        "0000002d 13 0002 00000002 2447"
        "01 00000003 612e62  00 00000001 00000000 72  01 00000000  00 00000002 00000002 7879 7879"
    )
    once = bytes.fromhex(
        "00000027 13 0002 00000002 244701 00000003 612e62  00 00000001 00000000 72  01 00000000  01 00000002 7879"
    )
    assert decode_msgs(once, 5, len(once)) == ("$G", messages)


def test_equal_payloads_take_their_bytes_on_the_way() -> None:
    """Bytes that wait between two nodes are bounded: a flood of one message is not to fit into few of them."""
    assert len(encode_msgs("$G", [(b"s", b"", b"", b"x" * 500)] * 100)) > 100 * 500
    assert len(encode_msgs("$G", [(b"s", b"", b"", b"")] * 100)) < 100


@given(names, st.lists(st.tuples(some, short, short, short), min_size=1, max_size=5))
def test_messages_that_go_together_come_back_as_they_were_and_damage_is_refused(
    account: str, messages: list[tuple[bytes, bytes, bytes, bytes]]
) -> None:
    raw = encode_msgs(account, messages)
    assert decode_msgs(raw, 5, len(raw)) == (account, messages)
    for cut in range(5, len(raw)):
        with pytest.raises(FrameError):
            decode_msgs(raw[:cut], 5, cut)
    with pytest.raises(FrameError):
        decode_msgs(raw + b"x", 5, len(raw) + 1)
    without_subject = encode_msgs(account, [*messages, (b"", b"", b"", b"x")])
    with pytest.raises(FrameError):
        decode_msgs(without_subject, 5, len(without_subject))


@pytest.mark.parametrize("messages", [
    [(b"s", b"", b"", b"x" * MAX_DELIVER_BYTES)],
    [(b"s", b"", b"", b"x" * 1_000)] * 200,  # short as a frame
    [(b"s", b"", b"", b"")] * (MAX_DELIVER_BYTES // MSGS_LENGTH_BYTES + 1),
])  # fmt: skip
def test_more_messages_than_nodes_send_together_are_refused(messages: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    raw = encode_msgs("$G", messages)
    with pytest.raises(FrameError):
        decode_msgs(raw, 5, len(raw))
