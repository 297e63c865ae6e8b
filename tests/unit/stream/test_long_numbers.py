from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.stream.apply import counters
from jetcluster.stream.apply.counters import add, has_more_bits, read, subtract, written

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
