from __future__ import annotations

from jetcluster.model import times
from jetcluster.stream.duties import Republisher
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import T0, Stream


def republishing(**config: object) -> tuple[Stream, Republisher]:
    stream = Stream(**config)
    republish = Republisher(stream.machine.rules, stream.store)
    stream.machine.observe(republish.take)
    return stream, republish


def expected(subject: str, seq: int, last: int, *first: str, more: tuple[str, ...] = ()) -> bytes:
    stamp = times.rfc3339(T0 + seq - 1)
    return block(
        *first,
        "Nats-Stream: S",
        f"Nats-Subject: {subject}",
        f"Nats-Sequence: {seq}",
        f"Nats-Time-Stamp: {stamp}",
        f"Nats-Last-Sequence: {last}",
        *more,
    )


def test_what_is_stored_goes_out_with_its_place_in_the_stream() -> None:
    stream, republish = republishing(republish={"src": "a.*", "dest": "r.$1"})
    stream.publish(("a.x", b"", b"1"), ("b", b"", b"2"), ("a.x", block("X: 1"), b"3"), ("a.y", b"", b"4"))
    assert republish.messages == [
        (b"r.x", expected("a.x", 1, 0), b"1"),
        (b"r.x", expected("a.x", 3, 1, "X: 1"), b"3"),
        (b"r.y", expected("a.y", 4, 0), b"4"),
    ]
    republish.messages.clear()
    stream.publish(("a.x", b"", b"5"))
    assert [(subject, b"Nats-Last-Sequence: 3\r\n" in headers) for subject, headers, _ in republish.messages] == [
        (b"r.x", True)
    ]


def test_refused_messages_do_not_go_out() -> None:
    stream, republish = republishing(republish={"src": ">", "dest": "r.>"})
    stream.one("a", "Nats-Expected-Last-Sequence: 7")
    stream.one("a", "Nats-Msg-Id: 1")
    stream.one("a", "Nats-Msg-Id: 1")
    assert [subject for subject, _, _ in republish.messages] == [b"r.a"]


def test_headers_only() -> None:
    stream, republish = republishing(republish={"src": ">", "dest": "r.>", "headers_only": True})
    stream.one("a", payload=b"12345")
    assert republish.messages == [(b"r.a", expected("a", 1, 0, more=("Nats-Msg-Size: 5",)), b"")]


def test_a_destination_that_comes_out_wrong_is_left_out() -> None:
    stream, republish = republishing(republish={"src": "*", "dest": "{{split(1,-)}}"})
    stream.publish(("-", b"", b""), ("a-b", b"", b""))
    assert [subject for subject, _, _ in republish.messages] == [b"a.b"]


def test_transformed_subjects_are_republished() -> None:
    stream, republish = republishing(
        subject_transform={"src": "a.*", "dest": "t.$1"}, republish={"src": "t.*", "dest": "r.$1"}
    )
    stream.publish(("a.x", b"", b"1"), ("c", b"", b"1"))
    assert [(subject, b"Nats-Subject: t.x" in headers) for subject, headers, _ in republish.messages] == [
        (b"r.x", True)
    ]
    stream.machine.observe(None)
    stream.publish(("a.x", b"", b"1"))
    assert len(republish.messages) == 1


def test_streams_that_republish_into_each_other_come_to_an_end() -> None:
    """Each time the headers grow, and a message with more than 64 KiB of them is not stored: as with nats-server."""
    pairs = [
        republishing(subjects=["a.>"], republish={"src": "a.>", "dest": "b.>"}),
        republishing(subjects=["b.>"], republish={"src": "b.>", "dest": "a.>"}),
    ]
    waiting = [("a.1", b"", b"x")]
    stored = 0
    while waiting and stored < 2000:
        stream, republish = pairs[stored % 2]
        stream.publish(*waiting)
        stored += 1
        waiting = [(subject.decode(), headers, payload) for subject, headers, payload in republish.messages]
        republish.messages.clear()
    assert 100 < stored < 1000
    assert len(pairs[0][0].seqs()) + len(pairs[1][0].seqs()) == stored - 1, "the last one was refused"


def test_what_would_get_a_subject_that_no_server_can_carry_does_not_go_out() -> None:
    dest = "r." + ".".join(["{{wildcard(1)}}"] * 40)
    stream, republish = republishing(republish={"src": "a.*", "dest": dest})
    stream.publish(("a." + "x" * 2000, b"", b"1"), ("a.y", b"", b"2"))
    assert [payload for _, _, payload in republish.messages] == [b"2"]
    assert stream.store.messages == 2
