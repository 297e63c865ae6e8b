"""The age of answers: how requests ask for it, and how answers say it."""

from __future__ import annotations

import pytest

from jetcluster.stream.read import freshness
from jetcluster.stream.read.direct_get import DirectGet
from jetcluster.stream.read.freshness import ANY, Freshness, FreshnessError
from tests.unit.stream.direct_gets import numbered


def block(*lines: str) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line.encode() + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("headers", "payload", "wanted"),
    [
        (b"", b"", None),
        (b"", b'{"seq":1}', None),
        (block("Nats-Required-Api-Level: 1"), b'{"seq":1}', None),
        (b"", b'{"seq":1,"min_last_seq":7}', Freshness(7)),
        (b"", b'{"seq":1,"Min_Last_Seq":7}', Freshness(7)),
        (b"", b'{"min_last_seq":null,"max_staleness":0}', Freshness(0, 0)),
        (b"", b'{"max_staleness":1500000000,"consistency":"session"}', Freshness(0, 1_500_000_000, "session")),
        (b"", b'{"read_info":true}', Freshness(info=True)),
        (b"", b'{"last_by_subj":"consistency"}', None),
        (b"", b"not JSON: consistency", None),
        (b"", b'["consistency"]', None),
        (block("Nats-Min-Last-Sequence: 9"), b"", Freshness(9)),
        (block("Nats-Max-Staleness: 1.5s", "Nats-Read-Consistency: eventual", "Nats-Read-Info: true"), b"",
         Freshness(0, 1_500_000_000, "eventual", True)),
        (block("Nats-Min-Last-Sequence: 9", "Nats-Max-Staleness: 1s", "Nats-Read-Consistency: linearizable"),
         b'{"min_last_seq":12,"max_staleness":5,"consistency":"eventual"}', Freshness(12, 5, "linearizable")),
    ],
)  # fmt: skip
def test_fields_and_headers(headers: bytes, payload: bytes, wanted: Freshness | None) -> None:
    assert freshness.of(headers, payload) == wanted


@pytest.mark.parametrize(
    ("headers", "payload", "named"),
    [
        (b"", b'{"min_last_seq":-1}', "min_last_seq"),
        (b"", b'{"min_last_seq":"5"}', "min_last_seq"),
        (b"", b'{"min_last_seq":18446744073709551616}', "min_last_seq"),
        (b"", b'{"min_last_seq":true}', "min_last_seq"),
        (b"", b'{"max_staleness":-5}', "max_staleness"),
        (b"", b'{"max_staleness":"1s"}', "max_staleness"),
        (b"", b'{"consistency":"strong"}', "consistency"),
        (b"", b'{"consistency":5}', "consistency"),
        (b"", b'{"consistency":["session"]}', "consistency"),
        (b"", b'{"read_info":1}', "read_info"),
        (block("Nats-Min-Last-Sequence: x"), b"", "Nats-Min-Last-Sequence"),
        (block("Nats-Min-Last-Sequence: 18446744073709551616"), b"", "Nats-Min-Last-Sequence"),
        (block("Nats-Max-Staleness: 500"), b"", "Nats-Max-Staleness"),
        (block("Nats-Max-Staleness: -1s"), b"", "Nats-Max-Staleness"),
        (block("Nats-Read-Consistency: Session"), b"", "Nats-Read-Consistency"),
        (block("Nats-Read-Info: yes"), b"", "Nats-Read-Info"),
    ],
)
def test_bad_values_are_named(headers: bytes, payload: bytes, named: str) -> None:
    with pytest.raises(FreshnessError, match=named):
        freshness.of(headers, payload)


def test_a_bad_value_is_refused_with_its_name() -> None:
    getter = DirectGet("S", numbered(3))
    ((head, body),) = getter.open(b'{"seq":1,"consistency":"strong"}')  # type: ignore[misc]
    assert head.startswith(b"NATS/1.0 408 Bad Request: consistency must be") and not body


def test_wishes_of_a_body_are_met_before_it_is_answered() -> None:
    getter = DirectGet("S", numbered(3))
    for body in (
        b'{"seq":1,"min_last_seq":2}',
        b'{"seq":1,"batch":2,"max_staleness":5}',
        b'{"multi_last":["a"],"read_info":true}',
    ):
        assert getter.open(body) is None
        assert getter.open(body, b"", b"") is not None
    assert getter.answer_subject(b"a", b'{"min_last_seq":2}') is None
    assert getter.answer_subject(b"a", b'{"min_last_seq":2}', info=b"") is not None


def test_answers_say_how_fresh_they_are_when_they_are_asked() -> None:
    getter = DirectGet("S", numbered(3), "n1")
    info = getter.info_of("follower", 0.0125)
    lines = (
        b"Nats-Applied-Sequence: 3\r\n",
        b"Nats-Staleness: 12.5ms\r\n",
        b"Nats-Answered-By: n1\r\n",
        b"Nats-Answered-As: follower\r\n",
    )
    assert all(line in info for line in lines)
    assert b"Nats-Staleness: unknown\r\n" in getter.info_of("mirror", None)
    ((head, body),) = getter.open(b'{"seq":1,"read_info":true}', b"", info)  # type: ignore[misc]
    assert head.startswith(b"NATS/1.0\r\n" + info) and b"Nats-Sequence: 1\r\n" in head and body
    ((head, body),) = getter.open(b'{"seq":1,"no_hdr":true,"read_info":true}', b"", info)  # type: ignore[misc]
    assert head == b"NATS/1.0\r\n" + info + b"\r\n" and body
    ((head, _),) = getter.open(b'{"seq":9,"read_info":true}', b"", info)  # type: ignore[misc]
    assert head.startswith(b"NATS/1.0 404 Message Not Found\r\n" + info)
    batch = getter.open(b'{"seq":1,"batch":2,"read_info":true}', b"", info)
    *messages, (end, _) = batch.take(1 << 20)  # type: ignore[union-attr]
    assert end.startswith(b"NATS/1.0 204 EOB\r\n" + info) and b"Nats-Num-Pending: 1\r\n" in end
    assert all(info not in head for head, _ in messages)


def test_the_stricter_of_two_holds() -> None:
    assert ANY.stricter(ANY) == ANY
    weak, strong = Freshness(1, 50, "eventual"), Freshness(9, -1, "session", True)
    assert weak.stricter(strong) == strong.stricter(weak) == Freshness(9, 50, "session", True)
