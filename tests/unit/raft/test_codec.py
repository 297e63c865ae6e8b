from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.raft import codec
from jetcluster.raft.membership import Config, encode_config

CONFIG = Config(("peerA", "peerB"), ("peerC",))

FRAMES = {
    "append": (
        codec.encode_append(5, 10, 4, 9, 7, [(b"one", 4, 0), (b"", 5, 1), (encode_config(CONFIG), 5, 2)]),
        codec.Append(5, 10, 4, 9, 7, [(b"one", 11, 4, 0), (b"", 12, 5, 1), (encode_config(CONFIG), 13, 5, 2)]),
    ),
    "ack": (codec.encode_ack(5, 12, 7, True), codec.Ack(5, 12, 7, True)),
    "reject": (codec.encode(codec.Reject(5, 12, 3, 7, True)), codec.Reject(5, 12, 3, 7, True)),
    "pre-vote": (codec.encode(codec.PreVote(5, 12, 4)), codec.PreVote(5, 12, 4)),
    "pre-vote reply": (codec.encode(codec.PreVoteReply(5, 6, False)), codec.PreVoteReply(5, 6, False)),
    "vote": (codec.encode(codec.Vote(5, 12, 4)), codec.Vote(5, 12, 4)),
    "vote reply": (codec.encode(codec.VoteReply(5, True)), codec.VoteReply(5, True)),
    "timeout now": (codec.encode(codec.TimeoutNow(5)), codec.TimeoutNow(5)),
    "offer": (codec.encode_snap_offer(5, 12, 4, CONFIG), codec.SnapOffer(5, 12, 4, CONFIG)),
    "request": (codec.encode(codec.SnapRequest(5)), codec.SnapRequest(5)),
    "resign": (codec.encode(codec.Resign(5)), codec.Resign(5)),
    "rejoin": (codec.encode(codec.Rejoin(5, 3)), codec.Rejoin(5, 3)),
    "rejoin reply": (codec.encode(codec.RejoinReply(5, 3, 40)), codec.RejoinReply(5, 3, 40)),
    "lease request": (codec.encode(codec.LeaseRequest(5, 3, 300_000)), codec.LeaseRequest(5, 3, 300_000)),
    "lease grant": (codec.encode(codec.LeaseGrant(5, 3)), codec.LeaseGrant(5, 3)),
    "lease released": (codec.encode(codec.LeaseReleased(5, 3)), codec.LeaseReleased(5, 3)),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_come_back_as_they_went(name: str) -> None:
    frame, message = FRAMES[name]
    assert codec.decode(frame) == message


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_another_length_is_refused(name: str) -> None:
    frame, _ = FRAMES[name]
    for cut in range(len(frame)):
        with pytest.raises(codec.CodecError):
            codec.decode(frame[:cut])
    with pytest.raises(codec.CodecError):
        codec.decode(frame + b"\0")


@pytest.mark.parametrize("name", FRAMES)
def test_another_version_is_refused(name: str) -> None:
    frame, _ = FRAMES[name]
    with pytest.raises(codec.CodecError, match="version"):
        codec.decode(bytes((codec.VERSION + 1,)) + frame[1:])


@given(st.binary(max_size=200))
def test_garbage_raises_only_codec_errors(data: bytes) -> None:
    for decode in (codec.decode, codec.decode_control):
        try:
            decode(data)  # type: ignore[operator]
        except codec.CodecError:
            pass


@given(st.sampled_from(sorted(FRAMES)), st.integers(0, 500), st.integers(0, 255))
def test_a_changed_byte_gives_a_message_or_a_codec_error(name: str, at: int, value: int) -> None:
    frame = bytearray(FRAMES[name][0])
    frame[at % len(frame)] = value
    try:
        codec.decode(bytes(frame))
    except codec.CodecError:
        pass


@pytest.mark.parametrize(
    "frame",
    [
        codec.encode_append(5, 10, 6, 9, 0, []),
        codec.encode_append(5, 10, 4, 9, 0, [(b"x", 6, 0)]),
        codec.encode_append(5, 10, 4, 9, 0, [(b"x", 5, 0), (b"y", 4, 0)]),
        codec.encode_append(5, 10, 4, 9, 0, [(b"x", 5, 3)]),
        codec.encode_append(5, 10, 4, 9, 0, [(b"x", 5, 2)]),
        codec.encode_append(5, 10, 4, 9, 0, [(b"." * (codec.MAX_ENTRY_BYTES + 1), 5, 0)]),
    ],
    ids=["prev from the future", "entry from the future", "falling terms", "unknown type", "no configuration", "huge"],
)
def test_impossible_appends_are_refused(frame: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.decode(frame)


@pytest.mark.parametrize("name", ["append", "ack", "pre-vote", "offer", "request"])
def test_numbers_that_no_log_reaches_are_refused(name: str) -> None:
    """Code that adds one to them, or stores them, must not overflow."""
    frame, _ = FRAMES[name]
    with pytest.raises(codec.CodecError, match="no term"):
        codec.decode(frame[:2] + struct.pack("<Q", codec.MAX_NUMBER + 1) + frame[10:])
    if name in {"append", "ack", "pre-vote", "offer"}:
        with pytest.raises(codec.CodecError):
            codec.decode(frame[:10] + struct.pack("<Q", (1 << 64) - 1) + frame[18:])


def test_control_frames() -> None:
    beat = codec.encode_heartbeat(9, 1_700_000_000_000_000_000, 12, well=False, level=7)
    assert codec.decode_control(beat) == codec.Heartbeat(9, 1_700_000_000_000_000_000, 12, False, 7)
    assert codec.decode_control(codec.encode_heartbeat(9, -5, 1 << 63, well=True)) == codec.Heartbeat(9, 0, 0, True)
    groups = [(1, 2, 3), (4_000_000_000, 5, 6)]
    assert codec.decode_control(codec.encode_digest(groups)) == codec.Digest(groups)
    for frame in (b"", b"\1", b"\1\x63", codec.encode_digest(groups)[:-1], beat + b"x", beat[:-1]):
        with pytest.raises(codec.CodecError):
            codec.decode_control(frame)
