from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.stream.apply import counters
from jetcluster.stream.apply.counters import (
    MAX_DIGITS,
    add,
    has_more_bits,
    parse_increment,
    read,
    subtract,
    value_of,
    written,
)
from jetcluster.stream.ports import Counted, Duplicate
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import Stream


def counter(**config: object) -> Stream:
    return Stream(allow_msg_counter=True, subjects=["a", "b"], **config)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1),
        ("+5", 5),
        ("-3", -3),
        ("0", 0),
        ("007", 7),
        ("1" + "0" * 40, 10**40),
        ("", None),
        ("x", None),
        ("1_0", None),
        ("0x10", None),
        ("1e3", None),
        ("+", None),
        ("1.5", None),
        ("9" * (MAX_DIGITS + 2), None),
    ],
)
def test_increment(value: str, expected: int | None) -> None:
    assert parse_increment(value.encode()) == expected


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"val":"12"}', 12),
        (b'{ "val" : "-12", "x": 1 }', -12),
        (b'{"val":12}', None),
        (b'{"val":"x"}', None),
        (b'{"val":"\\ud800"}', None),
        ('{"val":"\u0663"}'.encode(), None),
        (b"{}", None),
        (b"[]", None),
        (b"junk", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 4000, None),
        (b"[" * 500_000, None),
        (b'{"val":' * 5000, None),
        (b'{"val":"1","x":"' + b"9" * 100_000 + b'"}', None),
        (b'{"val":"1","x":{"y":[2]}}', 1),
    ],
)
def test_value(payload: bytes, expected: int | None) -> None:
    assert value_of(payload) == expected


def test_totals_within_a_command_and_across() -> None:
    stream = counter()
    one = ("a", block("Nats-Incr: 5"), b"")
    result = stream.publish(one, ("b", block("Nats-Incr: -1", "User: u"), b""), one)
    assert result.verdicts == [Counted(1, b"5"), Counted(2, b"-1"), Counted(3, b"10")]
    assert stream.one("a", "Nats-Incr: 90", payload=b"") == Counted(4, b"100")
    stream.restart()
    assert stream.one("a", "Nats-Incr: -100", payload=b"") == Counted(5, b"0")
    assert [stream.store.rows[seq].payload for seq in range(1, 6)] == [
        b'{"val":"5"}', b'{"val":"-1"}', b'{"val":"10"}', b'{"val":"100"}', b'{"val":"0"}',
    ]  # fmt: skip
    assert stream.store.rows[2].headers == block("Nats-Incr: -1", "User: u")


def test_a_deleted_counter_starts_again() -> None:
    stream = counter()
    stream.one("a", "Nats-Incr: 5", payload=b"")
    stream.store.delete(1)
    assert stream.one("a", "Nats-Incr: 2", payload=b"") == Counted(2, b"2")


@pytest.mark.parametrize(
    ("fields", "payload", "code"),
    [
        (["Nats-Incr: x"], b"", 10171),
        (["Nats-Incr: 1"], b"p", 10170),
        ([], b"", 10169),
        (["X: 1"], b"", 10169),
        (["Nats-Incr:"], b"", 10169),
        (["Nats-Incr: 1", "Nats-Rollup: sub"], b"", 10171),
        (["Nats-Incr: 1", "Nats-Expected-Stream: S"], b"", 10171),
        (["Nats-Incr: 1", "Nats-Expected-Last-Sequence: 0"], b"", 10171),
        (["Nats-Incr: 1", "Nats-Expected-Last-Subject-Sequence: 0"], b"", 10171),
        (["Nats-Incr: 1", "Nats-Expected-Last-Subject-Sequence-Subject: a"], b"", 10171),
        (["Nats-Incr: 1", "Nats-Expected-Last-Msg-Id: x"], b"", 10171),
    ],
)
def test_refused(fields: list[str], payload: bytes, code: int) -> None:
    stream = counter(allow_rollup_hdrs=True)
    verdict = stream.one("a", *fields, payload=payload)
    assert isinstance(verdict, tuple) and verdict[0] == code
    assert not stream.seqs()


@pytest.mark.parametrize(("value", "code"), [("1", 10168), ("x", 10171)])
def test_on_another_stream(value: str, code: int) -> None:
    verdict = Stream().one("a", f"Nats-Incr: {value}", payload=b"")
    assert isinstance(verdict, tuple) and verdict[0] == code


@pytest.mark.parametrize("stored", [b"not a counter", b"[" * 500_000])
def test_broken_counter(stored: bytes) -> None:
    """An archive may bring such a message. Apply must not raise, however deep it is."""
    stream = Stream(subjects=["a"])
    stream.one("a", payload=stored)
    stream.machine.apply(3, 1, _update({"name": "S", "allow_msg_counter": True}))
    stream.index = 3
    assert stream.one("a", "Nats-Incr: 1", payload=b"") == (10172, "message counter is broken")


def _update(config: dict[str, object]) -> bytes:
    from jetcluster.stream.log.commands import encode_update_config

    return encode_update_config(0, config)


def test_result_too_large() -> None:
    headers = block("Nats-Incr: 99")
    stream = counter(max_msg_size=len(headers) + len(b'{"val":"99"}'))
    assert stream.one("a", "Nats-Incr: 99", payload=b"") == Counted(1, b"99")
    verdict = stream.one("a", "Nats-Incr: 99", payload=b"")
    assert isinstance(verdict, tuple) and verdict[0] == 10054
    assert stream.one("a", "Nats-Incr: -9", payload=b"") == Counted(2, b"90")


def test_a_retry_does_not_count_twice() -> None:
    stream = counter()
    assert stream.one("a", "Nats-Incr: 1", "Nats-Msg-Id: u", payload=b"") == Counted(1, b"1")
    assert stream.one("a", "Nats-Incr: 1", "Nats-Msg-Id: u", payload=b"") == Duplicate(1)
    assert stream.one("a", "Nats-Incr: 1", payload=b"") == Counted(2, b"2")


LONG = 10**4095
numbers = st.one_of(st.integers(), st.integers(-LONG, LONG), st.integers(-(10**520), 10**520))


@given(a=numbers, b=numbers)
def test_results_are_those_of_integers(a: int, b: int) -> None:
    one, two = read(b"%d" % a), read(b"%d" % b)
    assert written(one) == b"%d" % a
    assert written(add(one, two)) == b"%d" % (a + b)
    assert written(subtract(one, two)) == b"%d" % (a - b)
    assert add(one, two) == add(a, b)


@pytest.mark.parametrize("text", [b"-0", b"+0", b"+7", b"007", b"-" + b"0" * 600, b"+" + b"0" * 600 + b"12", b"-007"])
def test_signs_and_zeros_in_front(text: bytes) -> None:
    assert written(read(text)) == b"%d" % int(text)


@pytest.mark.parametrize("value", [2**12288, 2**12288 - 1, -(2**12288), -(2**12288) + 1, 0, 5])
def test_bits_are_counted_alike(value: int) -> None:
    assert has_more_bits(read(b"%d" % value), 12288) is (value.bit_length() > 12288)
    assert has_more_bits(value, 12288) is (value.bit_length() > 12288)


def test_a_long_number_takes_no_more_time_than_its_digits() -> None:
    text = b"7" * 4096
    began = time.process_time()
    for _ in range(2000):
        written(add(read(text), random.randrange(9)))
    assert time.process_time() - began < 0.5  # 1.3 s with integers
    assert isinstance(read(b"1" * counters.MAX_INT_DIGITS), int)
