"""Whole numbers of any length up to some thousand digits, read, added and written in linear time.

Python's own integers are binary: reading and printing one of 4,000 digits takes 0.4 ms, for every message of a counter
that anybody may have made so long. Those with few digits are `int`, which is faster there; others are `Decimal`.
Results are exact, so it makes no difference which of them a replica used.
"""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final

SHORT: Final = 512
"""Digits of the longest number that is an `int`: 10 us to print."""
_EXACT: Final = Context(prec=20_000, Emax=30_000, Emin=-30_000, traps=[Inexact, InvalidOperation])

Number = int | Decimal


def read(text: bytes) -> Number:
    """The number in `[+-]?[0-9]+`, which the caller has looked at."""
    return int(text) if len(text) <= SHORT else _EXACT.add(_EXACT.create_decimal(text.decode("ascii")), 0)


def add(a: Number, b: Number) -> Number:
    return a + b if isinstance(a, int) and isinstance(b, int) else _EXACT.add(a, b)


def subtract(a: Number, b: Number) -> Number:
    return a - b if isinstance(a, int) and isinstance(b, int) else _EXACT.subtract(a, b)


def written(number: Number) -> bytes:
    return b"%d" % number if isinstance(number, int) else format(number, "f").encode()


def has_more_bits(number: Number, bits: int) -> bool:
    """As `abs(number).bit_length() > bits`."""
    if isinstance(number, int):
        return number.bit_length() > bits
    return number.copy_abs() >= _power(bits)


def _power(bits: int) -> Decimal:
    found = _powers.get(bits)
    if found is None:
        found = _powers[bits] = Decimal(1 << bits)
    return found


_powers: dict[int, Decimal] = {}
"""By exponent, of which callers have few."""
