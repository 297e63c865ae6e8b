"""PubAcks are recognized, tables are bounded, and streams that are created anew begin anew."""

from __future__ import annotations

import random

import pytest

from jetcluster import errors, native
from jetcluster.server.accounts.told import MAX_STREAMS, OLDER_NS, UNKNOWN, Told, told, told_by
from jetcluster.stream.lead.answers import PubAcks, flow_ack
from jetcluster.stream.ports import Counted, Duplicate, PublishResult
from testkit.native import python_alone

SECOND = 1_000_000_000
S = PubAcks("S")


@pytest.mark.parametrize("acks", [PubAcks("S"), PubAcks("S", "hub"), PubAcks('odd "quoted", "seq":5 name')])
def test_every_form_of_a_pub_ack_tells_its_sequence(acks: PubAcks) -> None:
    forms = [body for _, body in acks.render(PublishResult(7, 1, None), [b"r"])]
    forms += [acks.ack(Duplicate(7)), acks.ack(Counted(7, b"3")), acks.batch(7, b"id", 2)]
    forms += [acks.batch_duplicate(7, b"id", 1)]
    for form in forms:
        assert told(form) == (acks.stream, 7), form


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"{}", b"hello", b'{"stream":"S"',
        b'{"stream":"S","seq":', b'{"stream":"S","seq":}', b'{"stream":"S","seq":x}',
        b'{"stream":"S","seq":0}', b'{"stream":"S","seq":12', b'{"stream":"S","seq":1,"domain":"D"}',
        b'{"stream":"S","seq":1111111111111111111}', b'{"stream":"' + b"x" * 2000 + b'","seq":1}',
        flow_ack(5, 10), S.error(errors.by_code(10167)),
    ],
)  # fmt: skip
def test_everything_else_tells_nothing(payload: bytes) -> None:
    assert told(payload) is None
    assert list(told_by([(b"a", payload)], 0, 1)) == []


def test_compiled_and_python_agree_on_random_runs() -> None:
    if native.told_by is None:
        pytest.skip(f"no compiled loops: {native.why_pure}")
    pieces = [b'{"stream":"', b"S", b"T", b'"', b',"seq":', b"1", b"20", b"}", b",", b',"domain":"D"', b"\x00", b"{"]
    for seed in range(3000):
        rng = random.Random(seed)
        run: list[tuple[bytes, ...]] = []
        for _ in range(rng.randint(0, 8)):
            body = b"".join(rng.choices(pieces, k=rng.randint(0, 9)))
            if rng.random() < 0.6:
                body = PubAcks(rng.choice("ST"), rng.choice([None, "D"])).ack(rng.randint(0, 30))
            run.append((b"r", b"", b"", body) if rng.random() < 0.5 else (b"r", body))
        place, count = rng.randint(0, 4), rng.randint(-1, 9)
        with python_alone():
            expected = list(told_by(run, place, max(count, 0)))
        assert list(told_by(run, place, count)) == expected, f"seed {seed}"


def test_what_is_no_list_of_messages_is_an_error_and_no_crash() -> None:
    if native.told_by is None:
        pytest.skip(f"no compiled loops: {native.why_pure}")
    for wrong in (None, (), ("text",), [b"a", b"b"], (b"a", None)):
        with pytest.raises(TypeError):
            native.told_by([wrong], 0, 1)
    with pytest.raises(ValueError):
        native.told_by([(b"a", b"b")], -1, 1)


def test_the_highest_sequence_counts() -> None:
    table = Told()
    assert table.of(S.stream, 0) == 0
    table.note([(S.stream, 5), (b"other", 9)], 100 * SECOND)
    table.note([(S.stream, 3)], 101 * SECOND)  # a duplicate
    assert table.of(S.stream, 0) == 5
    assert table.of(b"other", 0) == 9


def test_a_stream_that_was_created_anew_begins_anew() -> None:
    table = Told()
    table.note([(S.stream, 1000)], 100 * SECOND)
    created = 100 * SECOND + OLDER_NS + 1
    assert table.of(S.stream, created) == 0
    table.note([(S.stream, 4)], created + SECOND)
    table.note([(S.stream, 2)], created + 2 * SECOND)
    assert table.of(S.stream, created) == 4
    assert table.of(S.stream, 0) == 1000


def test_a_connection_that_was_told_of_too_many_streams_may_have_been_told_anything() -> None:
    table = Told()
    for number in range(MAX_STREAMS + 1):
        table.note([(b"%d" % number, 1)], number)
    assert table.of(b"0", 0) == UNKNOWN
    assert table.of(b"1", 0) == 1
    assert table.of(b"never", 0) == UNKNOWN
