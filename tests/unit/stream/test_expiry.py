"""TTLs, markers and max_age by whole machines; what nats-server 2.15.2 stores in the same cases."""

from __future__ import annotations

import pytest

from jetcluster.stream.apply import expiry
from jetcluster.stream.log import commands
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import SECOND, Stream

MARKER = block("Nats-Marker-Reason: MaxAge", "Nats-TTL: 2s", "Nats-Rollup: sub")


def stored(stream: Stream) -> list[tuple[int, str, bytes]]:
    return [(m.seq, m.subject.decode(), m.headers) for m in sorted(stream.store.rows.values())]


def pass_time(stream: Stream, seconds: float) -> int:
    """Moves the clock; expires if the leader would propose it. How many messages went."""
    stream.now += int(seconds * SECOND)
    due = stream.machine.next_expiry
    if due is None or due > stream.now:
        return 0
    removed = stream.apply(commands.encode_expire(stream.now))
    assert isinstance(removed, int)
    return removed


def ttl(stream: Stream, subject: str, value: str, *more: str, payload: bytes = b"x") -> object:
    return stream.one(subject, f"Nats-TTL: {value}", *more, payload=payload)


def test_messages_go_when_their_time_has_come() -> None:
    stream = Stream(allow_msg_ttl=True)
    ttl(stream, "a", "1")
    stream.one("b")
    ttl(stream, "a", "never")
    ttl(stream, "c", "3s")
    assert pass_time(stream, 0.999) == 0 and stream.seqs() == [1, 2, 3, 4]
    assert pass_time(stream, 0.002) == 1 and stream.seqs() == [2, 3, 4]
    stream.restart()
    assert pass_time(stream, 2) == 1 and stream.seqs() == [2, 3]
    assert stream.machine.next_expiry is None


def test_an_expire_of_the_past_removes_nothing_early() -> None:
    stream = Stream(allow_msg_ttl=True)
    ttl(stream, "a", "10")
    assert stream.apply(commands.encode_expire(stream.now + 9 * SECOND)) == 0
    assert stream.seqs() == [1]


def test_what_was_deleted_before_its_time_is_no_matter() -> None:
    stream = Stream(allow_msg_ttl=True)
    ttl(stream, "a", "1")
    ttl(stream, "a", "1")
    stream.apply(commands.encode_delete_msg(stream.now, 1))
    assert pass_time(stream, 2) == 1
    assert stream.machine.next_expiry is None


@pytest.mark.parametrize(("value", "code"), [("0", 10165), ("500ms", 10165), ("-1", 10165), ("junk", 10165)])
def test_invalid(value: str, code: int) -> None:
    verdict = ttl(Stream(allow_msg_ttl=True), "a", value)
    assert isinstance(verdict, tuple) and verdict[0] == code
    verdict = ttl(Stream(), "a", value)
    assert isinstance(verdict, tuple) and verdict[0] == 10166


def test_never_outlives_max_age_and_a_longer_ttl_does_not() -> None:
    stream = Stream(allow_msg_ttl=True, max_age=10 * SECOND)
    stream.one("a")
    ttl(stream, "b", "never")
    ttl(stream, "c", "100")
    assert pass_time(stream, 5) == 0
    stream.one("d")
    assert pass_time(stream, 6) == 2 and stream.seqs() == [2, 4]
    stream.restart()
    due = stream.machine.next_expiry  # early is allowed after a restart, never late
    assert due is not None and due <= stream.store.rows[4].ts + 10 * SECOND
    assert pass_time(stream, 5) == 1 and stream.seqs() == [2]
    due = stream.machine.next_expiry
    assert due is not None and due > stream.now + 80 * SECOND  # that of c, which is gone
    stream.one("e")
    assert pass_time(stream, 11) == 1 and stream.seqs() == [2]


def test_a_stream_without_messages_forgets_that_there_was_one_that_never_expires() -> None:
    stream = Stream(allow_msg_ttl=True, max_age=10 * SECOND)
    ttl(stream, "a", "never")
    stream.apply(commands.encode_purge(stream.now))
    stream.apply(commands.encode_expire(stream.now))
    assert not any(table == 5 for table, _ in stream.store.side)
    stream.one("b")
    assert pass_time(stream, 11) == 1


def test_the_last_message_of_a_subject_leaves_a_marker_which_expires_too() -> None:
    stream = Stream(allow_msg_ttl=True, allow_rollup_hdrs=True, subject_delete_marker_ttl=2 * SECOND)
    ttl(stream, "a", "2")
    stream.one("b")
    ttl(stream, "b", "2")
    ttl(stream, "k", "2", "KV-Operation: PURGE", "Nats-Rollup: sub", payload=b"")
    ttl(stream, "d", "2", "KV-Operation: DEL", payload=b"")
    ttl(stream, "e", "2")
    ttl(stream, "e", "2")
    assert pass_time(stream, 2.1) == 6
    assert stored(stream) == [(2, "b", b""), (8, "a", MARKER), (9, "d", MARKER), (10, "e", MARKER)]
    stream.restart()
    assert pass_time(stream, 2.1) == 3
    assert stored(stream) == [(2, "b", b"")]


def test_max_age_leaves_markers_too() -> None:
    stream = Stream(
        allow_msg_ttl=True, allow_rollup_hdrs=True, subject_delete_marker_ttl=60 * SECOND, max_age=10 * SECOND
    )
    stream.one("a")
    stream.one("a")
    ttl(stream, "b", "never")
    stream.one("c", "KV-Operation: PURGE")
    assert pass_time(stream, 10.1) == 3
    marker = block("Nats-Marker-Reason: MaxAge", "Nats-TTL: 1m0s", "Nats-Rollup: sub")
    assert stored(stream) == [(3, "b", block("Nats-TTL: never")), (5, "a", marker)]
    assert pass_time(stream, 10.1) == 1  # max_age is shorter than the marker's TTL
    assert stored(stream) == [(3, "b", block("Nats-TTL: never"))]


@pytest.mark.parametrize(
    ("value", "per_subject", "expected"),
    [
        ("5", -1, "10"),
        ("2s", 5, "10"),
        ("15", -1, "15"),
        ("never", -1, "never"),
        ("5", 1, "5"),
    ],
)
def test_a_ttl_is_at_least_that_of_the_markers(value: str, per_subject: int, expected: str) -> None:
    stream = Stream(
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        subject_delete_marker_ttl=10 * SECOND,
        max_msgs_per_subject=per_subject,
    )
    stream.one("a", "X: 1", f"Nats-TTL: {value}", "Y: 2")
    headers = block("X: 1", f"Nats-TTL: {value}", "Y: 2")
    assert stream.store.rows[1].headers == (
        headers if value == expected else block("X: 1", "Y: 2", f"Nats-TTL: {expected}")
    )
    assert pass_time(stream, 9.9) == (1 if expected == "5" else 0)


def test_a_full_stream_that_discards_new_has_no_room_for_a_marker() -> None:
    stream = Stream(
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        subject_delete_marker_ttl=SECOND,
        discard="new",
        max_bytes=90,
        max_msgs_per_subject=1,
    )
    assert ttl(stream, "a", "1") == 1
    assert pass_time(stream, 2) == 1
    assert stored(stream) == []


def test_sealed_streams_keep_no_markers() -> None:
    stream = Stream(allow_msg_ttl=True, allow_rollup_hdrs=True, subject_delete_marker_ttl=SECOND)
    ttl(stream, "a", "1")
    stream.apply(commands.encode_update_config(0, {**stream.machine.config, "sealed": True}))
    assert pass_time(stream, 2) == 1
    assert stored(stream) == []


def test_a_command_removes_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_MESSAGES", 3)
    stream = Stream(allow_msg_ttl=True, max_age=100 * SECOND)
    for value in ["never", *["5"] * 5]:
        ttl(stream, "a", value)
    stream.publish(*[("b", b"", b"")] * 7)
    assert [pass_time(stream, 10 * (n == 0)) for n in range(4)] == [3, 2, 0, 0]
    removed = [pass_time(stream, 100 * (n == 0)) for n in range(5)]
    assert removed == [2, 3, 2, 0, 0] and stream.seqs() == [1], "the one that stays was looked at, too"


def test_one_stamp_of_the_future_makes_nothing_else_old() -> None:
    """A leader whose clock was two hours ahead took one message; the next leader's EXPIRE is about its own time."""
    hour = 3600 * SECOND
    stream = Stream(max_age=hour, allow_msg_ttl=True)
    start = stream.now
    for minute in range(60):
        stream.now = start + minute * 60 * SECOND
        stream.one("a")
    ttl(stream, "b", "30m")
    stream.now += 2 * hour
    stream.one("a")
    stream.now -= 2 * hour
    stream.now = start + hour + SECOND // 10
    assert stream.apply(commands.encode_expire(stream.now)) == 1, "the first message is an hour old, nothing else is"
    assert len(stream.seqs()) == 61
    stream.apply(commands.encode_update_config(stream.now, {**stream.machine.config, "max_msgs": 1000}, 99))
    assert len(stream.seqs()) == 61, "an update does not expire by the stamp either"
