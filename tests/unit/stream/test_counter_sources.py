"""Counters that are fed by sources (ADR-49). The stories were recorded from nats-server 2.15.2."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.stream.apply import counters, staging
from jetcluster.stream.apply.counters import MAX_SOURCES_BYTES, parse, payload_of
from jetcluster.stream.apply.machine import REFUSED
from jetcluster.stream.fields import nats_fields, replaced
from jetcluster.stream.log import bodies, commands
from jetcluster.stream.ports import Counted, Duplicate, PublishResult
from jetcluster.stream.rules import link_key
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_sourced import SECOND, Stream, code

ONE, TWO = {"name": "UP1"}, {"name": "UP2"}


class Counters(Stream):
    """A counter stream, fed by `UP1` and `UP2` by default."""

    def __init__(self, **config: Any) -> None:
        super().__init__(allow_msg_counter=True, **{"subjects": ["c.>"], "sources": [ONE, TWO], **config})
        self.config = config
        self.begun: set[str] = set()

    def feed(
        self, up: str, seq: int, origin: str, subject: str, total: object, *fields: str, incr: str = "+1",
        after: int | None = None, identity: bytes = b"id",
    ) -> Any:  # fmt: skip
        """Message `seq` of stream `up`, as a leader's link brings it."""
        key = link_key({"name": up})
        if (up, identity) not in self.begun:
            self.begun.add((up, identity))
            self.apply(commands.encode_sourced(self.now, bodies.encode_sourced(key, identity, 0, 0, 0)))
        headers = block(
            *fields, f"Nats-Incr: {incr}", f"Nats-Stream-Source: {up} {seq} > > {origin} {identity.decode()}"
        )
        payload = total if isinstance(total, bytes) else payload_of(int(str(total)))
        batch = Batch.encode([subject.encode()], [headers], [payload])
        after = seq - 1 if after is None else after
        body = bodies.encode_sourced(key, identity, 0, after, seq, (), [seq], batch)
        return self.apply(commands.encode_sourced(self.now, body))

    def own(self, subject: str, incr: str, *fields: str) -> Any:
        headers = block(*fields, f"Nats-Incr: {incr}")
        result = self.apply(commands.encode_publish(self.now, Batch.encode([subject.encode()], [headers], [b""])))
        assert isinstance(result, PublishResult) and result.verdicts is not None
        return result.verdicts[0]

    def rows(self, first: int = 1) -> list[tuple[str, str, dict[str, dict[str, str]], str]]:
        """Subject, increment, what is counted of sources, total."""
        found = []
        for m in self.store.queries.scan(b">", first):
            fields = nats_fields(m.headers)
            seen = json.loads(fields.get(b"Nats-Counter-Sources", b"{}"))
            found.append((m.subject.decode(), fields[b"Nats-Incr"].decode(), seen, json.loads(m.payload)["val"]))
        return found

    def last(self) -> tuple[str, str, dict[str, dict[str, str]], str]:
        return self.rows(self.store.last_seq)[-1]


def told() -> Counters:
    """Two upstreams become one subject, and somebody counts there directly."""
    s = Counters()
    s.feed("UP1", 1, "a.x", "c.x", 5, incr="+5")
    s.feed("UP2", 1, "b.x", "c.x", 3, incr="+3")
    assert s.own("c.x", "+10", "User: u") == Counted(3, b"18")
    s.feed("UP1", 2, "a.x", "c.x", 7, "User: v", incr="2")
    s.feed("UP2", 2, "b.y", "c.y", -7, incr="-7")
    return s


@pytest.fixture
def s() -> Counters:
    return Counters()


def test_several_sources_and_own_increments() -> None:
    s = told()
    assert s.rows() == [
        ("c.x", "5", {"UP1": {"a.x": "5"}}, "5"),
        ("c.x", "3", {"UP1": {"a.x": "5"}, "UP2": {"b.x": "3"}}, "8"),
        ("c.x", "+10", {"UP1": {"a.x": "5"}, "UP2": {"b.x": "3"}}, "18"),
        ("c.x", "2", {"UP1": {"a.x": "7"}, "UP2": {"b.x": "3"}}, "20"),
        ("c.y", "-7", {"UP2": {"b.y": "-7"}}, "-7"),
    ]
    assert [m.headers for m in s.store.queries.scan(b">", 1)][2:4] == [
        block("User: u", "Nats-Incr: +10", 'Nats-Counter-Sources: {"UP1":{"a.x":"5"},"UP2":{"b.x":"3"}}'),
        block(
            "User: v", "Nats-Incr: 2", "Nats-Stream-Source: UP1 2 > > a.x id",
            'Nats-Counter-Sources: {"UP1":{"a.x":"7"},"UP2":{"b.x":"3"}}',
        ),
    ]  # fmt: skip


def test_a_second_tier_has_the_first_one_as_its_source(s: Counters) -> None:
    s.feed("UP1", 1, "c.x", "c.x", 8, 'Nats-Counter-Sources: {"A":{"a.x":"5"},"B":{"b.x":"3"}}', incr="3")
    s.feed("UP1", 2, "c.x", "c.x", 18, 'Nats-Counter-Sources: {"A":{"a.x":"5"},"B":{"b.x":"3"}}', incr="+10")
    assert s.rows() == [("c.x", "8", {"UP1": {"c.x": "8"}}, "8"), ("c.x", "10", {"UP1": {"c.x": "18"}}, "18")]


def test_an_upstream_that_was_purged_or_reset() -> None:
    s = told()
    s.feed("UP1", 3, "a.x", "c.x", 1)
    assert s.last() == ("c.x", "-6", {"UP1": {"a.x": "1"}, "UP2": {"b.x": "3"}}, "14")
    s.feed("UP1", 4, "a.x", "c.x", 0, incr="-1")
    assert s.last() == ("c.x", "-1", {"UP1": {"a.x": "0"}, "UP2": {"b.x": "3"}}, "13")
    s.restart()
    s.feed("UP1", 5, "a.x", "c.x", 4, incr="+4")
    assert s.last() == ("c.x", "4", {"UP1": {"a.x": "4"}, "UP2": {"b.x": "3"}}, "17")
    assert s.own("c.x", "+1") == Counted(9, b"18")
    assert s.last() == ("c.x", "+1", {"UP1": {"a.x": "4"}, "UP2": {"b.x": "3"}}, "18")


def test_a_source_taken_out_and_put_back() -> None:
    s = told()
    counter = {"allow_msg_counter": True, "subjects": ["c.>"]}
    s.configure(**counter)
    s.own("c.x", "+1")
    assert s.last() == ("c.x", "+1", {"UP1": {"a.x": "7"}, "UP2": {"b.x": "3"}}, "21")
    s.restart()
    s.own("c.x", "+1")
    assert s.last() == ("c.x", "+1", {"UP1": {"a.x": "7"}, "UP2": {"b.x": "3"}}, "22")
    s.configure(**counter, sources=[ONE, TWO])
    s.begun.clear()
    s.feed("UP1", 90, "a.x", "c.x", 107, after=0)  # the link knows no more where it stood, nor need it
    assert s.last() == ("c.x", "100", {"UP1": {"a.x": "107"}, "UP2": {"b.x": "3"}}, "122")


def test_an_upstream_created_again() -> None:
    s = told()
    s.feed("UP2", 1, "b.x", "c.x", 1, identity=b"new")
    assert s.last() == ("c.x", "-2", {"UP1": {"a.x": "7"}, "UP2": {"b.x": "1"}}, "18")


def test_what_was_lost_with_the_counter_comes_back_with_the_next_total() -> None:
    s = told()
    s.apply(commands.encode_purge(s.now, b"c.x"))
    s.feed("UP1", 3, "a.x", "c.x", 106)
    assert s.last() == ("c.x", "106", {"UP1": {"a.x": "106"}}, "106")


def test_several_subjects_of_one_upstream_and_one_of_an_external_one(s: Counters) -> None:
    s.feed("UP1", 1, "a.1", "c.t", 5)
    s.feed("UP1", 2, "a.2", "c.t", 3)
    s.feed("UP1", 3, "a.1", "c.t", 10)
    assert s.last() == ("c.t", "5", {"UP1": {"a.1": "10", "a.2": "3"}}, "13")
    headers = block("Nats-Incr: 1", "Nats-Stream-Source: UP2:abcdefgh 1 > > a.1 id")
    batch = Batch.encode([b"c.t"], [headers], [b'{"val":"1"}'])
    key = link_key(TWO)
    s.apply(commands.encode_sourced(s.now, bodies.encode_sourced(key, b"id", 0, 0, 0)))
    s.apply(commands.encode_sourced(s.now, bodies.encode_sourced(key, b"id", 0, 0, 1, (), [1], batch)))
    assert s.last() == ("c.t", "1", {"UP1": {"a.1": "10", "a.2": "3"}, "UP2:abcdefgh": {"a.1": "1"}}, "14")


def test_what_comes_twice_counts_once() -> None:
    s = told()
    before = s.rows()
    assert s.feed("UP1", 1, "a.x", "c.x", 5) == 2
    assert s.feed("UP1", 2, "a.x", "c.x", 7) == 2
    assert code(s.feed("UP1", 5, "a.x", "c.x", 50)) == 10003
    assert s.rows() == before


def test_ids_inside_the_window_are_stored_once() -> None:
    s = Counters(duplicate_window=60 * SECOND)
    s.feed("UP1", 1, "a.x", "c.x", 5, "Nats-Msg-Id: one")
    assert s.own("c.x", "+1", "Nats-Msg-Id: one") == Duplicate(1)
    s.feed("UP1", 2, "a.x", "c.x", 6, "Nats-Msg-Id: one")
    s.feed("UP1", 3, "a.x", "c.x", 7, "Nats-Msg-Id: two")
    assert s.rows() == [("c.x", "5", {"UP1": {"a.x": "5"}}, "5"), ("c.x", "2", {"UP1": {"a.x": "7"}}, "7")]


def test_the_streams_own_transform_applies_first() -> None:
    s = Counters(subject_transform={"src": "c.*", "dest": "all"})
    s.feed("UP1", 1, "a.x", "c.x", 5)
    s.feed("UP2", 1, "b.y", "c.y", 6)
    assert s.own("c.z", "+1") == Counted(3, b"12")
    assert s.last() == ("all", "+1", {"UP1": {"a.x": "5"}, "UP2": {"b.y": "6"}}, "12")


def test_batches_of_all_kinds_carry_what_is_counted() -> None:
    s = Counters(allow_atomic=True)
    s.feed("UP1", 1, "a.x", "c.x", 5)
    batch = Batch.encode([b"c.x"] * 2, [block("Nats-Incr: 1")] * 2, [b""] * 2)
    s.apply(commands.encode_atomic(s.now, batch, plain=False, allow_msg_id=True)[0])
    seen = {"UP1": {"a.x": "5"}}
    assert s.rows()[1:] == [("c.x", "1", seen, "6"), ("c.x", "1", seen, "7")]
    s.feed("UP1", 2, "a.x", "c.x", 6)
    assert s.last() == ("c.x", "1", {"UP1": {"a.x": "6"}}, "8")


def test_what_is_no_counter_waits_at_the_door(s: Counters) -> None:
    """It is refused as upstream refuses it: nothing of it is stored, and nothing behind it. Once it is put right, all
    comes."""
    key = link_key(ONE)
    s.feed("UP1", 1, "a.x", "c.x", 5)
    for seq, headers, payload, expected in (
        (2, block("Nats-Stream-Source: UP1 2 > > a.x id"), b"text", 10169),
        (2, block("Nats-Incr: x", "Nats-Stream-Source: UP1 2 > > a.x id"), b'{"val":"6"}', 10171),
        (2, block("Nats-Incr: 1", "Nats-Stream-Source: UP1 2 > > a.x id"), b"text", 10172),
        (2, block("Nats-Incr: 1", "Nats-Stream-Source: UP1 2 > > a.x id"), b'{"val":"\\ud800"}', 10172),
        (2, block("Nats-Incr: 1"), b'{"val":"6"}', 10172),
    ):
        good = block("Nats-Incr: 1", "Nats-Stream-Source: UP1 3 > > a.x id")
        batch = Batch.encode([b"c.x"] * 2, [headers, good], [payload, b'{"val":"7"}'])
        body = bodies.encode_sourced(key, b"id", 0, 1, 3, (), [seq, 3], batch)
        assert code(s.apply(commands.encode_sourced(s.now, body))) == expected
        cursor = s.machine.cursor(key)
        assert cursor is not None and cursor.seq == 1
    assert s.feed("UP1", 3, "a.x", "c.x", 7, after=1) == 3
    assert s.last() == ("c.x", "2", {"UP1": {"a.x": "7"}}, "7")


def test_a_stream_that_is_no_counter_takes_all_as_it_is() -> None:
    s = Stream(sources=[ONE])
    key = link_key(ONE)
    s.apply(commands.encode_sourced(s.now, bodies.encode_sourced(key, b"id", 0, 0, 0)))
    fields = ("Nats-Incr: +3", 'Nats-Counter-Sources: {"A":{"x":"3"}}', "Nats-Stream-Source: UP1 1 > > a id")
    batch = Batch.encode([b"a"], [block(*fields)], [b'{"val":"3"}'])
    s.apply(commands.encode_sourced(s.now, bodies.encode_sourced(key, b"id", 0, 0, 1, (), [1], batch)))
    assert [(m.headers, m.payload) for m in s.store.queries.scan(b">", 1)] == [(block(*fields), b'{"val":"3"}')]


def test_a_header_from_a_client_counts_where_there_is_none_yet(s: Counters) -> None:
    assert s.own("c.x", "+9", 'Nats-Counter-Sources: {"UP1":{"a.x":"9"},"E":null}') == Counted(1, b"9")
    s.feed("UP1", 1, "a.x", "c.x", 10)
    assert s.last() == ("c.x", "1", {"E": {}, "UP1": {"a.x": "10"}}, "10")
    s.own("c.x", "+1", 'Nats-Counter-Sources: {"UP1":{"a.x":"0"}}')
    assert s.last() == ("c.x", "+1", {"E": {}, "UP1": {"a.x": "10"}}, "11")


@pytest.mark.parametrize("value", [
    "junk", "[]", '{"A":1}', '{"A":{"x":1}}', '{"A":{"x":"nan"}}', '{"A":{"x":"\\ud800"}}', "[" * 5000,
    '{"a":' * 5000, '{"A":{"x":"1"}', '{"A":{"x":{"y":"1"}}}',
])  # fmt: skip
def test_nobody_breaks_a_counter_for_others(value: str, s: Counters) -> None:
    refused = s.own("c.x", "+1", f"Nats-Counter-Sources: {value}")
    assert isinstance(refused, ApiError) and refused.err_code == 10172
    assert s.own("c.x", "+1") == Counted(1, b"1")


def test_without_sources_headers_are_kept_as_they_come() -> None:
    """Versions that know no counters with sources do the same, and may have replicas of the stream. Once it has some,
    headers that cannot be read are an error."""
    s = Counters(sources=[])
    s.own("c.x", "+1", "Nats-Counter-Sources: junk")
    s.own("c.x", "+1")
    s.own("c.y", "+1", 'Nats-Counter-Sources: {"UP1":{"a.y":"1"}}')
    headers = [m.headers for m in s.store.queries.scan(b">", 1)]
    assert headers[:2] == [block("Nats-Counter-Sources: junk", "Nats-Incr: +1"), block("Nats-Incr: +1")]
    s.own("c.x", "+1", "Nats-Counter-Sources: junk")
    s.configure(allow_msg_counter=True, subjects=["c.>"], sources=[ONE])
    assert code(s.feed("UP1", 1, "a.x", "c.x", 5)) == 10172
    refused = s.own("c.x", "+1")
    assert isinstance(refused, ApiError) and refused.err_code == 10172
    assert s.feed("UP1", 1, "a.y", "c.y", 5) == 1
    assert s.last() == ("c.y", "4", {"UP1": {"a.y": "5"}}, "5")
    s.apply(commands.encode_purge(s.now, b"c.x"))
    assert s.own("c.x", "+1") == Counted(6, b"1")


def test_a_header_grows_so_far(s: Counters) -> None:
    for n in range(3):
        s.feed("UP1", n + 1, f"a.{n}" + "x" * 10_000, "c.x", 1)
    refused = s.feed("UP1", 4, "a.4" + "x" * 10_000, "c.x", 1)
    assert code(refused) == 10054
    assert s.feed("UP1", 4, "a.0" + "x" * 10_000, "c.x", 5) == 4
    assert s.last()[3] == "7"
    limited = Counters(max_msg_size=150)
    limited.feed("UP1", 1, "a.x", "c.x", 1)
    assert code(limited.feed("UP1", 2, "a." + "x" * 60, "c.x", 1)) == 10054
    assert limited.own("c.x", "+1") == Counted(2, b"2")


def test_a_command_makes_so_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small messages make large ones: they are stored in pieces, and the counter goes on over them."""
    monkeypatch.setattr(staging, "MAX_STAGED_TOTALS_BYTES", 60_000)
    s = Counters()
    s.feed("UP1", 1, "a." + "x" * 20_000, "c.x", 5)
    batch = Batch.encode([b"c.x"] * 20, [block("Nats-Incr: 1")] * 20, [b""] * 20)
    result = s.apply(commands.encode_publish(s.now, batch))
    assert result.verdicts == [Counted(n + 2, b"%d" % (n + 6)) for n in range(20)]
    assert [row[3] for row in s.rows()] == [str(n + 5) for n in range(21)]


def test_no_command_is_too_large_for_what_it_makes(s: Counters) -> None:
    """Thousands of small messages, as a leader that knows no better may have put them into one command."""
    s.feed("UP1", 1, "a." + "x" * 30_000, "c.x", 5)
    batch = Batch.encode([b"c.x"] * 2700, [block("Nats-Incr: 1")] * 2700, [b""] * 2700)
    result = s.apply(commands.encode_publish(s.now, batch))
    assert result is not REFUSED and result.verdicts[-1] == Counted(2701, b"2705")


def test_subjects_that_are_no_text(s: Counters) -> None:
    odd = [b"a.\xff", b"a.\xfe", "a.é".encode(), b"a.\xed\xa0\x80", b'a."}{[\\']
    key = link_key(ONE)
    s.apply(commands.encode_sourced(s.now, bodies.encode_sourced(key, b"id", 0, 0, 0)))
    for seq, subject in enumerate(odd * 2, 1):
        headers = b"NATS/1.0\r\nNats-Incr: 1\r\nNats-Stream-Source: UP1 %d > > %b id\r\n\r\n" % (seq, subject)
        batch = Batch.encode([b"c.x"], [headers], [payload_of(seq)])
        s.apply(commands.encode_sourced(s.now, bodies.encode_sourced(key, b"id", 0, seq - 1, seq, (), [seq], batch)))
        s.restart()
    _, _, seen, total = s.last()
    assert len(seen["UP1"]) == len(odd)
    assert total == str(6 + 7 + 8 + 9 + 10)


@pytest.mark.parametrize(("value", "expected"), [
    (b"{}", {}), (b' { "A" : { "x" : "1" , "y" : "-2" } , "B" : { } } ', {"A": {"x": "1", "y": "-2"}, "B": {}}),
    (b'{"A":null}', {"A": {}}),
    (b'{"A{[\\"":{"x}]\\\\":"1"}}', {'A{["': {"x}]\\": "1"}}), (b'{"A":{"x":"?"}}', {"A": {"x": "?"}}),
    (b"", None), (b"null", None), (b"[]", None), (b"1", None), (b'"x"', None), (b'{"A":[]}', None),
    (b'{"A":{"x":null}}', None), (b'{"A":{"x":{}}}', None), (b'{"A":{"\xff":"1"}}', None),
    (b'{"A":"x"}', None), (b'{"A":{"x":"1"}} x', None),
    (b'{"A":{"x":"' + b"1" * MAX_SOURCES_BYTES + b'"}}', None), (b'{"A":' * 6000, None), (b'\\"' * 16_000, None),
    (b'{"' + b"\\\\" * 10_000 + b'":{}}', {"\\" * 10_000: {}}),
])  # fmt: skip
def test_parse(value: bytes, expected: object) -> None:
    assert parse(value) == expected


def test_reading_takes_time_in_proportion() -> None:
    hostile = (b'"' + b'\\"' * 16_000, b'"' * 32_000, b"{" * 32_000, b'{"a":' * 6_400, b"\\" * 32_000, b"{}" * 16_000)
    started = time.process_time()
    for value in hostile:
        assert parse(value) is None
    assert time.process_time() - started < 1.0


def test_encode_reads_back() -> None:
    seen = {"B": {"y": "2", "x": "1"}, "A": {"\udc80": "3"}}
    assert parse(counters.encode(seen)) == seen
    assert counters.encode({"B": {"y": "2", "x": "1"}, "A": {}}) == b'{"A":{},"B":{"x":"1","y":"2"}}'


def test_replaced() -> None:
    assert replaced(block("A: 1", "B: 2"), b"A", b"9") == block("A: 9", "B: 2")
    assert replaced(block("A: 1", "B: 2"), b"C", b"9") == block("A: 1", "B: 2", "C: 9")
    assert replaced(block("AA: 1", "A: 1", "A: 2"), b"A", b"9") == block("AA: 1", "A: 9", "A: 2")
    assert replaced(b"", b"A", b"9") == block("A: 9")
    assert replaced(b"NATS/1.0\r\nA: 1", b"A", b"9") == block("A: 9")
